"""Records grouped for reading: one row per scenario and defense, the worst-off person first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from seepage.audit._record import Defense, Record
from seepage.audit._words import Setup, residual_words
from seepage.audit.results import Results
from seepage.audit.results._amount import Amount, find_baseline, headline, in_references
from seepage.core._construct import Component


@dataclass(frozen=True)
class Row:
    """What one attack got from everybody behind one defense.

    Args:
        data: Name of the data set.
        model: The broadcast network.
        local: What the clients computed.
        threat: What the adversary knew.
        attack: The attack.
        defense: What the clients did before sharing.
        batch_size: Number of people in each batch.
        sampling: How they were chosen; empty if that is not known.
        people: How many were attacked.
        metric: What tells most about this kind of input: PSNR, or of tables and texts the share of
            columns or words that are right.
        worst: That of the worst-off person.
        worst_person: That person's number.
        median: Its median.
        baseline: The best that a guess without any update reached for the worst-off person; None
            if there was none.
        exact: How many came back exactly, whether or not that identifies them; None where that
            was not measured.
        identified: How many were singled out among strangers, or reconstructed.
        other: Value of other metrics for the worst-off person.
        seconds: Time of all attacks together.
        failed: How many cases gave no result.
        unfit: How many cases the attack cannot take.
        residual: Of guesses that no truth was there to score: how much of the update the best one
            leaves unexplained; None where there are none, or where that is not known.
    """

    data: str
    model: str
    local: Component
    threat: Component | None
    attack: Component
    defense: Defense
    batch_size: int
    sampling: str
    people: int
    metric: str
    worst: float
    worst_person: int | None
    median: float
    baseline: float | None
    exact: int | None
    identified: int
    other: dict[str, float | None]
    seconds: float
    failed: int
    unfit: int = 0
    residual: float | None = None

    @property
    def setup(self) -> Setup:
        """Defense, local computation and batch size."""
        return Setup(self.defense, self.local, self.batch_size)

    def words(self, value: float | None, *, unit: bool = True) -> str:
        """A value of the metric, for people."""
        return Amount(self.metric, value).words(unit=unit)


def summarise(records: Results | Sequence[Record]) -> list[Row]:
    """Group attacks by everything but people and seeds, the worst leak first.

    An attack that found more behind a defense has another row without it, see `Result.behind`.
    """
    groups = Results.of(records).without("seed")
    rows = [_summarise_group(group) for group in groups.values()]
    return sorted(rows, key=lambda row: -in_references(Amount(row.metric, row.worst)))


def _summarise_group(group: Results) -> Row:
    done = [record for record in group.records if record.error is None]
    metric = headline({name: None for record in done for name in record.scores})
    people = [
        (value, person, record, index)
        for record in done
        for index, (person, value) in enumerate(
            zip(record.people, record.scores.get(metric, ()), strict=False)
        )
        if value is not None
    ]
    # Repetitions of an attack on one person are no more people: the best counts.
    best: dict[int, float] = {}
    for value, number, *_ in people:
        best[number] = max(value, best.get(number, -math.inf))
    worst, person, record, index = max(
        people, key=lambda entry: entry[0], default=(-math.inf, None, None, 0)
    )
    other = {} if record is None else {n: v[index] for n, v in record.scores.items()}
    first = group.records[0]
    return Row(
        data=first.data,
        model=first.model,
        local=first.local,
        threat=first.threat,
        attack=first.attack,
        defense=first.defense,
        batch_size=first.batch_size,
        sampling=first.sampling,
        people=len({row.victim for row in group}),
        metric=metric,
        worst=worst,
        worst_person=person,
        median=median(best.values()) if best else -math.inf,
        baseline=None if record is None else find_baseline(record, index, metric),
        exact=_exact(done),
        identified=group.identified,
        other=other,
        seconds=sum(float(r.effort.get("seconds", 0)) for r in done),
        failed=sum(record.failed for record in group.records),
        unfit=sum(not record.applicable for record in group.records),
        residual=min(
            (float(r.certificate["residual"] or 0) for r in group.unscored if r.certificate),
            default=None,
        ),
    )


def _exact(records: list[Record]) -> int | None:
    """How many came back exactly, in any repetition."""
    if not any("exact" in record.scores for record in records):
        return None
    people = {
        person
        for record in records
        for index, person in enumerate(record.people if record.scores else ())
        if record.is_exact(index)
    }
    return len(people)


def exact_words(row: Row, *, of: str) -> str:
    """How many of how many came back exactly."""
    return "-" if row.exact is None or not row.people else f"{row.exact}{of}{row.people}"


def unscored_words(row: Row) -> str:
    """What stands in the place of a score where there is none."""
    if row.residual is not None:
        return f"residual {residual_words(row.residual)}"
    if row.failed:
        return "failed"
    return "n/a" if row.unfit else "no truth"
