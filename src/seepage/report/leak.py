"""What came back about whom, and how it is read: one attempt per attack and person."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from seepage.audit import Record
from seepage.report.words import decibels

# Of tables and texts PSNR says little: it would compare codes of answers and numbers of words.
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


Victim = tuple[str, int]
Scores = Mapping[str, tuple[float | None, ...]]
NO_DEFENSE = "chain()"
# From here on a PSNR only says that the guess is the input up to rounding.
SATURATED = 60.0


@dataclass(frozen=True)
class Yardstick:
    """When a score counts, for a metric that grows with what leaks.

    Args:
        recognisable: From this value on a guess shows the input.
        margin: How far it must be above the best guess that needs no update.
    """

    recognisable: float
    margin: float


# PSNR: an error of a tenth of the range, and half the squared error of the guess without update.
# SSIM, which sees shapes under noise and in the wrong contrast, where PSNR does not: half of what
# the same image has. Of tables and texts: the share of columns or words that are right.
YARDSTICKS: Mapping[str, Yardstick] = MappingProxyType(
    {
        "psnr": Yardstick(20.0, 3.0),
        "ssim": Yardstick(0.5, 0.1),
        "feature_accuracy": Yardstick(0.8, 0.2),
        "token_accuracy": Yardstick(0.5, 0.2),
    }
)


class Level(StrEnum):
    """How much of a person's input came back, the worst first.

    A convention of this tool, not a law of perception: people's own judgement agrees with such
    scores only loosely, which is why a report shows the pictures as well. In doubt the worse
    reading counts: one metric that sees the input is enough.

    References:
        Sun et al., 2023 (sun2023privacy) on scores against human judgement
    """

    recognisable = "recognisable"
    partial = "a trace"
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


def level_of(record: Record, index: int) -> Level:
    """Read the scores of one person by every yardstick; the worst reading counts."""
    readings = [
        _reading(value, _baseline(record, index, metric), yardstick)
        for metric, yardstick in YARDSTICKS.items()
        if (value := _score(record.scores, index, metric)) is not None
    ]
    return min(readings, key=lambda level: level.rank, default=Level.hidden)


def _reading(value: float, baseline: float | None, yardstick: Yardstick) -> Level:
    if baseline is not None and value < baseline + yardstick.margin:
        return Level.hidden
    return Level.recognisable if value >= yardstick.recognisable else Level.partial


def attempts(records: Sequence[Record]) -> list[Attempt]:
    """Every person of every record with a score, in the order of the audit."""
    return [attempt for number, record in enumerate(records) for attempt in _of(number, record)]


def _of(number: int, record: Record) -> Iterator[Attempt]:
    for index, value in enumerate(record.scores.get("psnr", ())):
        if value is not None:
            yield Attempt(number, record, index, value, level_of(record, index))


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


def strongest(tried: Iterable[Attempt]) -> dict[Victim, Attempt]:
    """Per person the attempt that shows most, the worst-off person first.

    A defense is judged by the lowest error over attacks: it must hold against all of them.

    Deviations:
        A guess that is read as worse goes before one of a lower error, so that what can be
        recognised under noise is not covered by a grey guess with a better PSNR.

    References:
        Liu et al., 2024, Sec. 4 (liu2024systematic)
    """
    best: dict[Victim, Attempt] = {}
    for attempt in tried:
        known = best.get(attempt.victim)
        if known is None or strength(attempt) > strength(known):
            best[attempt.victim] = attempt
    return dict(sorted(best.items(), key=lambda item: strength(item[1]), reverse=True))


def strength(attempt: Attempt) -> tuple[int, float]:
    """What attempts are ordered by: the reading, then the PSNR."""
    return -attempt.level.rank, attempt.psnr


def by_defense(tried: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts behind each defense, no defense first, then as the audit names them."""
    groups: dict[str, list[Attempt]] = {}
    for attempt in tried:
        groups.setdefault(attempt.record.defense, []).append(attempt)
    return dict(sorted(groups.items(), key=lambda group: group[0] != NO_DEFENSE))


def by_attack(tried: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts with each attack, as the audit names them."""
    groups: dict[str, list[Attempt]] = {}
    for attempt in tried:
        groups.setdefault(attempt.record.attack, []).append(attempt)
    return groups


def recognisable(best: dict[Victim, Attempt]) -> int:
    """How many people are recognisable."""
    return sum(attempt.level is Level.recognisable for attempt in best.values())
