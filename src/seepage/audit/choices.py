"""Which defense to choose: what the strongest attack gets through each, and what each costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from seepage.audit.record import Defense, Record
from seepage.core.errors import InvalidValue, UnknownName
from seepage.scoring import METRICS


@dataclass(frozen=True)
class Leak:
    """What the best attack on one person behind one defense got.

    Args:
        defense: What the client did.
        data: Where the person is from.
        person: The person's number.
        value: The score, in the metric asked for.
        attack: Which attack it was.
    """

    defense: Defense
    data: str
    person: int
    value: float
    attack: str


@dataclass(frozen=True)
class Leakage:
    """What the strongest attack on each person gets through one defense.

    Args:
        defense: What the clients did.
        worst: For the worst-off person.
        mean: Over all people, each attacked by whatever is strongest on them.
        attacks: How many people each attack was the strongest on.
    """

    defense: Defense
    worst: float
    mean: float
    attacks: dict[str, int]


@dataclass(frozen=True)
class Choice:
    """One defense, by what it lets through and what it costs.

    Args:
        label: Its name.
        leakage: What comes back; less is better (PSNR, or LPIPS with its sign changed).
        utility: What the model is worth, e.g. test accuracy; more is better.
    """

    label: str
    leakage: float
    utility: float


def strongest(records: Iterable[Record], metric: str = "psnr") -> list[Leak]:
    """The best attack on each person behind each defense, over everything else that varies.

        S_D = min over attacks A of d(x, A(D(g)))

    Deviations:
        The paper writes a maximum over attacks, but means, and tabulates, the smallest error. Its
        tables take one attack for all people; here each person meets the worst of them.

    References:
        Liu et al., 2024, Eq. 3 and Table 4 (liu2024systematic)
    """
    sign = _sign(metric)
    best: dict[tuple[Defense, str, int], Leak] = {}
    for record in records:
        for person, value in zip(record.people, record.scores.get(metric, ()), strict=False):
            key = record.defense, record.data, person
            if value is not None and (key not in best or sign * value > sign * best[key].value):
                best[key] = Leak(*key, value, str(record.attack))
    return list(best.values())


def leakages(records: Iterable[Record], metric: str = "psnr") -> list[Leakage]:
    """What the strongest attacks get through each defense, the least leaking first."""
    sign = _sign(metric)
    groups: dict[Defense, list[Leak]] = {}
    for leak in strongest(records, metric):
        groups.setdefault(leak.defense, []).append(leak)
    found = [_leakage(defense, leaks, sign) for defense, leaks in groups.items()]
    return sorted(found, key=lambda leakage: (sign * leakage.mean, str(leakage.defense)))


def ranked(choices: Sequence[Choice], *, utility: float) -> list[Choice]:
    """The choices that are worth at least this much, the least leaking first.

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
    """The choices that no other beats in both respects, the least leaking first.

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


def _leakage(defense: Defense, leaks: list[Leak], sign: float) -> Leakage:
    values = [leak.value for leak in leaks]
    counts = {leak.attack: 0 for leak in leaks}
    for leak in leaks:
        counts[leak.attack] += 1
    return Leakage(defense, sign * max(sign * value for value in values), fmean(values), counts)


def _sign(metric: str) -> float:
    """One where higher scores leak more, minus one where lower ones do."""
    if metric not in METRICS:
        raise InvalidValue(f"expected a metric among {', '.join(METRICS)}, got {metric!r}")
    return 1.0 if METRICS[metric].higher_leaks_more else -1.0


@dataclass(frozen=True)
class Breach:
    """A person whose data came back better than a gate allows.

    Args:
        gate: The gate that tripped.
        record: The case.
        person: The person's number.
        value: What the metric says of that person.
    """

    gate: Gate
    record: Record
    person: int
    value: float


@dataclass(frozen=True)
class Gate:
    """How much may come back of anybody, by one metric.

    Args:
        metric: Its name.
        threshold: Beyond it, in the direction in which this metric says that more leaked, a
            person counts as leaked: above for PSNR, below for LPIPS.

    Example:
        >>> Gate.parse("psnr=20")
        Gate(metric='psnr', threshold=20.0)
    """

    metric: str
    threshold: float

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read METRIC=VALUE."""
        metric, _, value = text.partition("=")
        if metric not in METRICS:
            raise UnknownName("metric", metric, METRICS, where=f"in --fail-above {text}")
        try:
            threshold = float(value)
        except ValueError:
            threshold = math.nan
        if math.isnan(threshold):
            raise InvalidValue(f"expected --fail-above METRIC=NUMBER, got {text!r}")
        return cls(metric, threshold)

    def leaks(self, records: Iterable[Record]) -> list[Breach]:
        """Everybody beyond the threshold, the worst first."""
        sign = 1 if METRICS[self.metric].higher_leaks_more else -1
        found = [
            Breach(self, record, person, value)
            for record in records
            for person, value in zip(
                record.people, record.scores.get(self.metric, ()), strict=False
            )
            if value is not None and sign * value > sign * self.threshold
        ]
        return sorted(found, key=lambda leak: -sign * leak.value)
