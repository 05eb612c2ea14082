"""Which defense to choose, and whether more leaks than a gate allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from seepage.audit._record import Defense, Record
from seepage.audit._spec import Spec
from seepage.audit.results import Result, Results
from seepage.core._grouping import group_by
from seepage.core.errors import InvalidValue, UnknownName
from seepage.scoring import METRICS
from seepage.scoring._scores import JUDGED


@dataclass(frozen=True)
class Leak:
    """The best attack on one person behind one defense.

    Args:
        defense: What the client did.
        data: The person's data set.
        person: The person's number in it.
        value: The score.
        attack: The attack.
    """

    defense: Defense
    data: str
    person: int
    value: float
    attack: str


@dataclass(frozen=True)
class Leakage:
    """What the strongest attacks on each person get through one defense.

    Args:
        defense: What the clients did.
        worst: Score of the worst-off person.
        mean: Over all people, each with the strongest attack on them.
        attacks: For how many people each attack was the strongest.
    """

    defense: Defense
    worst: float
    mean: float
    attacks: dict[str, int]


@dataclass(frozen=True)
class Choice:
    """One defense, with its leakage and its utility.

    Args:
        label: Its name.
        leakage: Less is better: PSNR, or LPIPS with its sign changed.
        utility: More is better, e.g. test accuracy.
    """

    label: str
    leakage: float
    utility: float


def strongest(records: Iterable[Record], metric: str = "psnr") -> list[Leak]:
    """Find the best attack on each person behind each defense.

        S_D = min over attacks A of d(x, A(D(g)))

    What was found behind a link that whoever sees the update can apply counts without it as well.

    Deviations:
        The paper writes a maximum over attacks, but tabulates the smallest error. Its tables take
        one attack for all people; here each person has the attack that is worst for them.

    References:
        Liu et al., 2024, Eq. 3 and Table 4 (liu2024systematic)
    """
    sign = _sign(metric)
    records = list(records)
    tried = {(record.defense, *person) for record in records for person in record.persons}
    found = [
        Leak(defense, *person, value, str(record.attack))
        for record in records
        for person, value in zip(record.persons, record.scores.get(metric, ()), strict=False)
        for defense in (record.defense, *record.weaker)
        if value is not None and (defense, *person) in tried
    ]
    groups = group_by(found, lambda leak: (leak.defense, leak.data, leak.person))
    return [max(leaks, key=lambda leak: sign * leak.value) for leaks in groups.values()]


def leakages(records: Iterable[Record], metric: str = "psnr") -> list[Leakage]:
    """Summarise what the strongest attacks get through each defense, the least leaking first."""
    sign = _sign(metric)
    found = []
    for defense, leaks in group_by(strongest(records, metric), lambda leak: leak.defense).items():
        values = [leak.value for leak in leaks]
        attacks = dict(Counter(leak.attack for leak in leaks))
        found.append(Leakage(defense, sign * max(sign * v for v in values), fmean(values), attacks))
    return sorted(found, key=lambda leakage: (sign * leakage.mean, str(leakage.defense)))


def ranked(choices: Sequence[Choice], *, utility: float) -> list[Choice]:
    """Sort the choices with at least this utility, the least leaking first.

    Example:
        >>> a, b, c = Choice("a", 10, 0.5), Choice("b", 30, 0.9), Choice("c", 35, 0.8)
        >>> [choice.label for choice in ranked([c, b, a], utility=0.8)]
        ['b', 'c']

    References:
        Liu et al., 2024, Sec. 4 (liu2024systematic), defenses compared at the same utility
    """
    worth = [choice for choice in choices if choice.utility >= utility]
    return sorted(worth, key=lambda choice: (choice.leakage, -choice.utility))


def pareto_front(choices: Sequence[Choice]) -> list[Choice]:
    """Select the choices that no other beats in leakage and in utility, the least leaking first.

    Example:
        >>> a, b, c = Choice("a", 10, 0.5), Choice("b", 30, 0.9), Choice("c", 35, 0.8)
        >>> [choice.label for choice in pareto_front([c, b, a])]
        ['a', 'b']
    """
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.leakage, -c.utility)):
        if not front or choice.utility > front[-1].utility:
            front.append(choice)
    return front


def _sign(metric: str) -> float:
    """Return 1 if higher scores leak more, -1 if lower ones do."""
    if metric not in METRICS:
        raise InvalidValue(f"expected a metric among {', '.join(METRICS)}, got {metric!r}")
    return 1.0 if METRICS[metric].higher_leaks_more else -1.0


# The gate that counts people who were identified.
IDENTIFIED = "identified"


@dataclass(frozen=True)
class Breach:
    """A person whose data leaked beyond a gate.

    Args:
        gate: The gate that tripped.
        record: The case.
        person: The person's number.
        value: The person's score.
    """

    gate: Gate
    record: Record
    person: int
    value: float

    @property
    def index(self) -> int:
        """Place of the person in the batch."""
        return self.record.people.index(self.person)


@dataclass(frozen=True)
class Gate:
    """How much of anybody's data may leak, by one metric, or how many people may be identified.

    Args:
        metric: Its name, or "identified".
        threshold: A person leaks beyond it: above it for PSNR, below it for LPIPS. For
            "identified", how many people may be.

    Example:
        >>> Gate.parse("psnr=20")
        Gate(metric='psnr', threshold=20.0)
    """

    metric: str
    threshold: float

    @classmethod
    def parse(cls, text: str | Gate) -> Gate:
        """Read METRIC=VALUE; a gate stays as it is."""
        if isinstance(text, Gate):
            return text
        metric, _, value = text.partition("=")
        if metric not in METRICS and metric != IDENTIFIED:
            known = (IDENTIFIED, *METRICS)
            raise UnknownName("metric", metric, known, where=f"in --fail-above {text}")
        try:
            threshold = float(value)
        except ValueError:
            threshold = math.nan
        whole = metric != IDENTIFIED or (threshold >= 0 and threshold.is_integer())
        if not math.isfinite(threshold) or not whole:
            raise InvalidValue(f"expected --fail-above METRIC=NUMBER, got {text!r}")
        return cls(metric, threshold)

    def __str__(self) -> str:
        return f"{self.metric}={self.threshold:.17g}"

    def leaks(self, records: Results | Iterable[Record]) -> list[Breach]:
        """List everybody beyond the threshold, the worst first.

        A score counts only if it beats the best guess for that person without any update.
        """
        rows = [row for row in Results.of(records) if not row.behind]
        if self.metric == IDENTIFIED:
            found = [row for row in rows if row.level.identified]
            many = len({row.person for row in found}) > self.threshold
            return self._keep_clearest(found) if many else []
        sign = _sign(self.metric)
        beyond = [
            Breach(self, row.record, row.victim[1], value)
            for row in rows
            if (value := row.score(self.metric)) is not None
            and sign * value > sign * self.threshold
            and not self._is_guessed(row.record, row.index, sign * value)
        ]
        return sorted(beyond, key=lambda leak: -sign * leak.value)

    def _keep_clearest(self, found: Sequence[Result]) -> list[Breach]:
        """One breach for each person and setup: an exact guess, or the one that stands out most."""

        def clarity(row: Result) -> tuple[bool, float]:
            return row.exact, row.identification.match if row.identification else -math.inf

        groups = group_by(found, lambda row: (row.person, row.setup)).values()
        clearest = (max(group, key=clarity) for group in groups)
        return [Breach(self, row.record, row.victim[1], 1.0) for row in clearest]

    def _is_guessed(self, record: Record, index: int, value: float) -> bool:
        """Whether a guess without any update scores as well for this person."""
        sign = _sign(self.metric)
        guessed = (scores.get(self.metric) for scores in record.baselines.values())
        values = [scores[index] for scores in guessed if scores is not None]
        return any(sign * known >= value for known in values if known is not None)


def require_measured(gates: Sequence[Gate | str], spec: Spec) -> None:
    """Refuse a gate that can never trip: without a truth, or on a metric left out."""
    blind = [batch.data for part in spec.parts for batch in part.batches if batch.truth is None]
    if gates and blind:
        raise InvalidValue(
            f"--fail-above compares with the truth, which there is none of behind {blind[0]}; give "
            "it as --truth, or in the spec as truth, or leave --fail-above out"
        )
    asked = [part.audit.metrics for part in spec.parts]
    for gate in map(Gate.parse, gates):
        measured = any(m is None or gate.metric in [metric.name for metric in m] for m in asked)
        if gate.metric not in (IDENTIFIED, *JUDGED) and not measured:
            raise InvalidValue(
                f"--fail-above {gate.metric} needs that metric, which {spec.source.name} does not "
                "measure; add it to metrics"
            )


def find_breaches(gates: Sequence[Gate | str], records: Results | Sequence[Record]) -> list[Breach]:
    """List everybody whose data leaked beyond a gate, gate by gate, the worst first.

    Raises:
        InvalidValue: No case could measure the metric of a gate.
    """
    results = Results.of(records)
    done = [record for record in results.records if record.error is None]
    found: list[Breach] = []
    for gate in map(Gate.parse, gates):
        measured = gate.metric == IDENTIFIED or any(gate.metric in r.scores for r in done)
        if done and not measured:
            raise InvalidValue(
                f"no case could measure {gate.metric}, so --fail-above says nothing; use another "
                "metric"
            )
        found.extend(gate.leaks(results))
    return found
