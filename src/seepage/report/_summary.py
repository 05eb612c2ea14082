"""Records grouped for reading: one row per scenario and defense, the worst-off person first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from seepage.audit._record import UNAWARE, Defense, Record
from seepage.audit._words import Setup, local_words, residual_words, tell_apart, threat_label
from seepage.audit.results import Results
from seepage.audit.results._amount import Amount, find_baseline, headline, in_references
from seepage.core._construct import Component
from seepage.core._grouping import group_by


@dataclass(frozen=True)
class Row:
    """What one attack recovered of all people with one defense.

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

    An attack that found more with a defense also has a row without it, see `Result.behind`.
    """
    groups = Results.of(records).without("seed")
    rows = [_summarise_group(group) for group in groups.values()]
    return sorted(rows, key=lambda row: -in_references(Amount(row.metric, row.worst)))


def _summarise_group(group: Results) -> Row:
    first = group.records[0]
    done = [record for record in group.records if record.error is None]
    metric = headline({name: None for record in done for name in record.scores})
    scored = [(value, row) for row in group if (value := row.score(metric)) is not None]
    worst, row = max(scored, key=lambda pair: pair[0], default=(-math.inf, None))
    # Repetitions of an attack on one person are no more people: the best counts.
    people = group_by(scored, lambda pair: pair[1].victim).values()
    best = [max(value for value, _ in repeated) for repeated in people]
    is_measured = any("exact" in record.scores for record in done)
    residuals = [r.certificate["residual"] for r in group.unscored if r.certificate]
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
        worst_person=None if row is None else row.victim[1],
        median=median(best) if best else -math.inf,
        baseline=None if row is None else find_baseline(row.record, row.index, metric),
        exact=len({row.victim for row in group if row.exact}) if is_measured else None,
        identified=group.identified,
        other={} if row is None else {name: row.score(name) for name in row.record.scores},
        seconds=sum(float(r.effort.get("seconds", 0)) for r in done),
        failed=sum(record.failed for record in group.records),
        unfit=sum(not record.applicable for record in group.records),
        residual=min((float(residual or 0) for residual in residuals), default=None),
    )


def exact_words(row: Row, *, of: str) -> str:
    """How many of how many came back exactly."""
    return "-" if row.exact is None or not row.people else f"{row.exact}{of}{row.people}"


def unscored_words(row: Row) -> str:
    """What is shown instead of a score that is missing."""
    if row.residual is not None:
        return f"residual {residual_words(row.residual)}"
    if row.failed:
        return "failed"
    return "n/a" if row.unfit else "no truth"


# Columns that are shown only if they vary, by the field of a row.
_VARYING = {"batch": "batch_size", "client": "local", "adversary": "threat", "drawn": "sampling"}


def list_varying(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The cells of the columns that are shown only if they vary."""
    clients = tell_apart((row.local for row in rows), local_words, str)
    cells = {
        "batch": [str(row.batch_size) for row in rows],
        "client": [clients[row.local] for row in rows],
        "adversary": ["" if r.threat is None else threat_label(r.threat) for r in rows],
        "drawn": [row.sampling for row in rows],
    }
    # The name of an unaware attack already says what its threat would.
    aware = [row for row in rows if not row.attack.name.startswith(UNAWARE)]
    varying = {
        column: cells[column]
        for column, name in _VARYING.items()
        if len({getattr(row, name) for row in aware}) > 1
    }
    steps = [str(row.attack.arguments.get("steps", "")) for row in rows]
    names = [row.attack.name for row in rows]
    if len(set(zip(names, steps, strict=True))) > len(set(names)):
        varying["steps"] = steps
    return varying


def name_attacks(attacks: Iterable[Component]) -> dict[Component, str]:
    """Each attack by its name, with the options that tell it from others of the same name.

    Steps are left out, since they have a column of their own.

    Example:
        >>> weak, strong = Component("dlg", {"tv": 0.1}), Component("dlg", {"tv": 0.2})
        >>> list(name_attacks([weak, strong, Component("rgap")]).values())
        ['dlg tv=0.1', 'dlg tv=0.2', 'rgap']
    """
    groups = group_by(dict.fromkeys(attacks), lambda attack: attack.name)
    labels = {}
    for name, group in groups.items():
        options = dict.fromkeys(option for attack in group for option in attack.arguments)
        telling = [
            option
            for option in options
            if option != "steps" and len({repr(a.arguments.get(option)) for a in group}) > 1
        ]
        for attack in group:
            told = [f"{o}={attack.arguments[o]}" for o in telling if o in attack.arguments]
            labels[attack] = " ".join([name, *told])
    return labels
