"""How much came back of a person, by the measure of their kind of input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from seepage.audit._record import Record
from seepage.audit._words import decibels
from seepage.core._scale import DECIBELS, Scale
from seepage.scoring import METRICS
from seepage.scoring._scores import find_scale

Scores = Mapping[str, tuple[float | None, ...]]
# A share of columns or words this far above the best guess without an update is a leak of them.
_MORE = 0.2
# From here on a PSNR only says that the guess is the input up to rounding.
SATURATED = DECIBELS.highest


@dataclass(frozen=True)
class Amount:
    """A score by the measure of its kind of input.

    Example:
        >>> Amount("psnr", 31.25).words(), Amount("feature_accuracy", 0.8).words()
        ('31.2 dB', '80 % of the columns')
    """

    metric: str
    value: float | None

    @property
    def scale(self) -> Scale:
        """How to read it."""
        return find_scale(self.metric)

    @property
    def in_order(self) -> bool:
        """Whether words count only in their place."""
        return self.scale.in_order

    @property
    def is_share(self) -> bool:
        """Whether it is a share of columns or words."""
        return bool(self.scale.of)

    def words(self, *, unit: bool = True) -> str:
        """For people, with the unit or as short as a table has it; "-" where there is none."""
        if not self.is_share:
            return decibels(self.value, unit=unit)
        if self.value is None or self.value < 0:
            return "-"
        return f"{100 * self.value:.0f} %" + f" of the {self.scale.of}" * unit


def headline(scores: Mapping[str, object]) -> str:
    """The measure to show of these scores: the share that is right of tables and texts, or PSNR.

    Example:
        >>> headline({"psnr": (9.0,), "token_accuracy": (1.0,)}), headline({"psnr": (9.0,)})
        ('token_accuracy', 'psnr')
    """
    return next((name for name in _list_shares() if name in scores), "psnr")


@cache
def _list_shares() -> tuple[str, ...]:
    """The built-in metrics that are a share, in their order."""
    return tuple(name for name in METRICS.built_in if find_scale(name).of)


def find_amount(record: Record, index: int) -> Amount:
    """What came back of a person: words in their place, or in any order if that is far more."""
    metric = headline(record.scores)
    loose = find_scale(metric).loose
    if loose in record.scores:
        kept, gain = _gain(record, index, metric), _gain(record, index, loose)
        metric = loose if gain >= max(0.0, kept) + _MORE else metric
    return Amount(metric, find_score(record.scores, index, metric))


def _gain(record: Record, index: int, metric: str) -> float:
    """How much more came back than the best guess without an update has right."""
    value = find_score(record.scores, index, metric)
    return -math.inf if value is None else value - (find_baseline(record, index, metric) or 0.0)


def list_parts(record: Record, index: int, *, columns: bool) -> tuple[Amount, ...]:
    """The share of columns or words that leaked of a person who is not identified, if any.

    `columns` says whether more columns are right, over all people, than luck explains.
    """
    amount = find_amount(record, index)
    shown = columns or not amount.scale.beyond_luck
    if shown and amount.is_share and _gain(record, index, amount.metric) >= _MORE:
        return (amount,)
    return ()


def find_score(scores: Scores, index: int, metric: str) -> float | None:
    """A score of a person; None if there is none."""
    values = scores.get(metric)
    return None if values is None else values[index]


def find_baseline(record: Record, index: int, metric: str) -> float | None:
    """The score of the best guess without an update."""
    values = (find_score(scores, index, metric) for scores in record.baselines.values())
    return max((value for value in values if value is not None), default=None)


def in_references(amount: Amount) -> float:
    """A score divided by its reference, to compare different measures."""
    value = -math.inf if amount.value is None else amount.value
    return value / amount.scale.telling


def most(found: Iterable[Amount]) -> Amount:
    """The worst of these amounts; one without a value if there are none."""
    return max(found, key=in_references, default=Amount("psnr", None))


def amounts(record: Record) -> list[Amount]:
    """What came back of everybody in a record who has a score."""
    people = range(len(record.scores.get(headline(record.scores), ())))
    found = [find_amount(record, index) for index in people]
    return [amount for amount in found if amount.value is not None]
