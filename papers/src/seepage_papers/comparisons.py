"""How numbers of a table can compare: what a claim is tested by.

Each test lists its comparisons with a margin, which is negative where the claim is contradicted
and NaN where a number is missing. "More" is what leaks more, whichever way a measure counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple, Protocol

from seepage_papers.numbers import Numbers, cell_words, other_axis


class Margin(NamedTuple):
    """By how much a comparison turns out as claimed, and the comparison in words."""

    value: float
    words: str


Others = Callable[[str], Numbers]


class Test(Protocol):
    """One way for numbers to compare."""

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """Every comparison; `others` gives the numbers of another table."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rising:
    """What leaks grows from each label to the next.

    Args:
        along: Labels of one axis, in the order of the growth.
        axis: Which, "rows" or "columns".
        at: Labels of the other; all if none.
        by: The least growth of each step.
        most: The largest.
    """

    along: Sequence[str]
    axis: str = "rows"
    at: Sequence[str] = ()
    by: float = 0.0
    most: float = math.inf

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """Each step, at each label of the other axis."""
        del others
        margins = []
        for other in numbers.labels(other_axis(self.axis), self.at):
            for low, high in pairwise(numbers.labels(self.axis, self.along)):
                a, b = (numbers.at(self.axis, x, other) for x in (low, high))
                step = numbers.sign * (b - a)
                words = f"{cell_words(low, other)} {a:.4g}, {cell_words(high, other)} {b:.4g}"
                margins.append(Margin(min(step - self.by, self.most - step), words))
        return margins


@dataclass(frozen=True, kw_only=True)
class Close:
    """What leaks at some labels is about the same as at another.

    Args:
        along: Labels of one axis.
        to: The label they are compared with.
        within: The largest difference.
        axis: Which, "rows" or "columns".
        at: Labels of the other; all if none.
    """

    along: Sequence[str]
    to: str
    within: float
    axis: str = "rows"
    at: Sequence[str] = ()

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """Each label against the one."""
        steps = [(label, self.to) for label in self.along]
        tests = [Rising(along=s, axis=self.axis, at=self.at, by=-self.within) for s in steps]
        most = [Rising(along=s[::-1], axis=self.axis, at=self.at, by=-self.within) for s in steps]
        return [m for test in (*tests, *most) for m in test(numbers, others)]


@dataclass(frozen=True, kw_only=True)
class Extreme:
    """Some labels leak most, or least, of all; equal ones pass.

    Args:
        labels: Of one axis.
        most: Whether they leak most; least otherwise.
        axis: Which, "rows" or "columns".
        among: The labels to compare with; all if none.
        at: Labels of the other axis; all if none.
    """

    labels: Sequence[str]
    most: bool
    axis: str = "rows"
    among: Sequence[str] = ()
    at: Sequence[str] = ()

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """Each of them against each of the rest."""
        chosen = numbers.labels(self.axis, self.labels)
        rest = [x for x in numbers.labels(self.axis, self.among) if x not in chosen]
        pairs = [(b, a) if self.most else (a, b) for a, b in product(chosen, rest)]
        tests = [Rising(along=pair, axis=self.axis, at=self.at) for pair in pairs]
        return [margin for test in tests for margin in test(numbers, others)]


@dataclass(frozen=True, kw_only=True)
class Between:
    """The numbers themselves, as the measure counts them, lie between two values.

    Args:
        low: The least.
        high: The largest.
        along: Labels of one axis; all if none.
        axis: Which, "rows" or "columns".
        at: Labels of the other; all if none.
    """

    low: float = -math.inf
    high: float = math.inf
    along: Sequence[str] = ()
    axis: str = "rows"
    at: Sequence[str] = ()

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """Each number."""
        del others
        margins = []
        for other in numbers.labels(other_axis(self.axis), self.at):
            for label in numbers.labels(self.axis, self.along):
                found = numbers.at(self.axis, label, other)
                margin = min(found - self.low, self.high - found)
                margins.append(Margin(margin, f"{cell_words(label, other)} {found:.4g}"))
        return margins
