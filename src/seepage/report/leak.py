"""What came back of each person, how it is read, and who is worst off."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from seepage.audit.record import Record
from seepage.core.construct import Component
from seepage.report.words import NO_DEFENSE, Setup, decibels

# PSNR says little about tables and texts: it would compare codes of answers and word numbers.
_SHARES: Mapping[str, str] = {"feature_accuracy": "columns", "token_accuracy": "words"}


@dataclass(frozen=True)
class Amount:
    """A score by the measure of its kind of input.

    Args:
        metric: Its name.
        value: What it says.

    Example:
        >>> Amount("psnr", 31.25).words(), Amount("feature_accuracy", 0.8).words()
        ('31.2 dB', '80 % of the columns')
    """

    metric: str
    value: float | None

    def words(self, *, unit: bool = True) -> str:
        """For people, with the unit or as short as a table has it; "-" where there is none."""
        if self.metric not in _SHARES:
            return decibels(self.value, unit=unit)
        if self.value is None or self.value < 0:
            return "-"
        return f"{100 * self.value:.0f} %" + f" of the {_SHARES[self.metric]}" * unit


def headline(scores: Mapping[str, object]) -> str:
    """The measure to show of these scores: the share that is right of tables and texts, or PSNR.

    Example:
        >>> headline({"psnr": (9.0,), "token_accuracy": (1.0,)}), headline({"psnr": (9.0,)})
        ('token_accuracy', 'psnr')
    """
    return next((metric for metric in _SHARES if metric in scores), "psnr")


K = TypeVar("K", bound=Hashable)
Victim = tuple[str, int]
Scores = Mapping[str, tuple[float | None, ...]]
# From here on a PSNR only says that the guess is the input up to rounding.
SATURATED = 60.0


@dataclass(frozen=True)
class _Yardstick:
    """When a score counts, for a metric that grows with what leaks.

    Args:
        recognisable: From this value on a guess shows the input.
        margin: How far it must be above the best guess that needs no update.
    """

    recognisable: float
    margin: float


# PSNR: an error of a tenth of the range, and half the squared error of the guess without update.
# SSIM: half of what two equal images have. It sees shapes under noise and in the wrong contrast,
# which PSNR does not. Tables and texts: the share of columns or words that are right.
YARDSTICKS: Mapping[str, _Yardstick] = MappingProxyType(
    {
        "psnr": _Yardstick(20.0, 3.0),
        "ssim": _Yardstick(0.5, 0.1),
        "feature_accuracy": _Yardstick(0.8, 0.2),
        "token_accuracy": _Yardstick(0.5, 0.2),
    }
)


class Level(StrEnum):
    """How much of a person's input came back, the worst first.

    This is a convention of this tool. Human judgement agrees with such scores only loosely, which
    is why a report shows the pictures as well. In doubt the worse reading counts: one metric that
    sees the input is enough.

    References:
        Sun et al., 2023 (sun2023privacy) on scores against human judgement
    """

    recognisable = "recognisable"
    partial = "partial"
    hidden = "near a guess"

    @property
    def rank(self) -> int:
        """Zero for the worst."""
        return list(Level).index(self)


@dataclass(frozen=True)
class Attempt:
    """One attack on one person.

    Args:
        number: Position of the record in the audit.
        record: The case.
        index: Position of the person in the record's batch.
        psnr: What came back, in dB.
        level: How that is read.
    """

    number: int
    record: Record
    index: int
    psnr: float
    level: Level

    @property
    def victim(self) -> Victim:
        """Data set and number of the person."""
        return self.record.data, self.record.people[self.index]

    @property
    def amount(self) -> Amount:
        """What came back, by the measure of its kind of input."""
        metric = headline(self.record.scores)
        return Amount(metric, self.score(metric))

    @property
    def without_update(self) -> Amount:
        """The same of the best guess for this person that needs no update."""
        metric = headline(self.record.scores)
        return Amount(metric, _baseline(self.record, self.index, metric))

    @property
    def baseline(self) -> float | None:
        """PSNR of the best guess for this person that needs no update; None if none was made."""
        return _baseline(self.record, self.index, "psnr")

    def score(self, metric: str) -> float | None:
        """Another score of the same guess; None where it is not defined."""
        return _score(self.record.scores, self.index, metric)


def _level_of(record: Record, index: int) -> Level:
    """Read the scores of one person by every yardstick; the worst reading counts."""
    readings = [
        _read_score(value, _baseline(record, index, metric), yardstick)
        for metric, yardstick in YARDSTICKS.items()
        if (value := _score(record.scores, index, metric)) is not None
    ]
    return min(readings, key=lambda level: level.rank, default=Level.hidden)


def _read_score(value: float, baseline: float | None, yardstick: _Yardstick) -> Level:
    if baseline is not None and value < baseline + yardstick.margin:
        return Level.hidden
    return Level.recognisable if value >= yardstick.recognisable else Level.partial


def attempts(records: Sequence[Record]) -> list[Attempt]:
    """Every person of every record with a score, in the order of the audit."""
    return [
        attempt
        for number, record in enumerate(records)
        for attempt in _list_attempts(number, record)
    ]


def _list_attempts(number: int, record: Record) -> Iterator[Attempt]:
    for index, value in enumerate(record.scores.get("psnr", ())):
        if value is not None:
            yield Attempt(number, record, index, value, _level_of(record, index))


def _score(scores: Scores, index: int, metric: str) -> float | None:
    values = scores.get(metric)
    return None if values is None else values[index]


def _baseline(record: Record, index: int, metric: str) -> float | None:
    values = (_score(scores, index, metric) for scores in record.baselines.values())
    return max((value for value in values if value is not None), default=None)


def in_yardsticks(amount: Amount) -> float:
    """A score as a multiple of what counts as recognisable, which orders different measures."""
    value = -math.inf if amount.value is None else amount.value
    return value / YARDSTICKS[amount.metric].recognisable


def most(found: Iterable[Amount]) -> Amount:
    """What is worst for anybody, by whichever measure; one without a value if there is none."""
    return max(found, key=in_yardsticks, default=Amount("psnr", None))


def amounts(record: Record) -> list[Amount]:
    """What came back of everybody in a record who has a score."""
    metric = headline(record.scores)
    values = record.scores.get(metric, ())
    return [Amount(metric, value) for value in values if value is not None]


def unscored(records: Iterable[Record]) -> list[Record]:
    """The records of guesses that were compared with no truth."""
    return [record for record in records if record.error is None and not record.scores]


def residual_of(record: Record) -> float:
    """How much of the update a guess leaves unexplained; infinite if that is not known."""
    value = record.certificate["residual"] if record.certificate else None
    return math.inf if value is None else float(value)


def strongest(tried: Iterable[Attempt]) -> dict[Victim, Attempt]:
    """Per person the attempt that shows most, the worst-off person first.

    A defense is judged by the lowest error over attacks: it must hold against all of them.

    Deviations:
        An attempt with a worse reading goes before one with a lower error. Otherwise a grey guess
        with a better PSNR would hide an input that can be recognised under noise.

    References:
        Liu et al., 2024, Sec. 4 (liu2024systematic)
    """
    best = keep_strongest(tried, lambda attempt: attempt.victim)
    return dict(sorted(best.items(), key=lambda item: strength(item[1]), reverse=True))


def keep_strongest(tried: Iterable[Attempt], key: Callable[[Attempt], K]) -> dict[K, Attempt]:
    """The strongest attempt for each value of a key, in order of first appearance."""
    best: dict[K, Attempt] = {}
    for attempt in tried:
        known = best.setdefault(key(attempt), attempt)
        if strength(attempt) > strength(known):
            best[key(attempt)] = attempt
    return best


def strength(attempt: Attempt) -> tuple[int, float]:
    """The order of attempts: the reading, then the PSNR."""
    return -attempt.level.rank, attempt.psnr


def group_by_setup(tried: Iterable[Attempt]) -> dict[Setup, list[Attempt]]:
    """Attempts by defense, local computation and batch size; no defense first."""
    groups: dict[Setup, list[Attempt]] = {}
    for attempt in tried:
        groups.setdefault(Setup.of(attempt.record), []).append(attempt)
    return dict(sorted(groups.items(), key=lambda group: group[0].defense != NO_DEFENSE))


def group_by_attack(tried: Iterable[Attempt]) -> dict[Component, list[Attempt]]:
    """Attempts by attack, in the order of the audit."""
    groups: dict[Component, list[Attempt]] = {}
    for attempt in tried:
        groups.setdefault(attempt.record.attack, []).append(attempt)
    return groups


def count_recognisable(best: Mapping[Victim, Attempt]) -> int:
    """How many people are recognisable."""
    return sum(attempt.level is Level.recognisable for attempt in best.values())


@dataclass(frozen=True)
class Verdict:
    """What leaked, as sentences.

    Args:
        level: The reading of the worst-off person that the headline is about; None if nobody was
            attacked with a result.
        headline: One sentence.
        details: More sentences: the worst-off person, and what each defense changes.
        worst: The attempt that came closest, among those that the headline is about.
        alarms: Bounds that an attack beat, one sentence each. This cannot happen without a bug.
    """

    level: Level | None
    headline: str
    details: tuple[str, ...] = ()
    worst: Attempt | None = None
    alarms: tuple[str, ...] = ()
