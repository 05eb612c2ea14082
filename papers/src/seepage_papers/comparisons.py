"""How numbers of a table can compare: what a claim is tested by.

Each test lists its comparisons, each at least zero where it is as claimed and NaN where a number
is missing. "More" is what leaks more, whichever way a measure counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Protocol

from seepage_papers.evidence import Comparison
from seepage_papers.numbers import Numbers, cell_words, other_axis

Others = Callable[[str], Numbers]


class Test(Protocol):
    """One way for numbers to compare."""

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
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

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each step, at each label of the other axis."""
        del others
        found = []
        for other in numbers.labels(other_axis(self.axis), self.at):
            for low, high in pairwise(numbers.labels(self.axis, self.along)):
                words = f"{cell_words(low, other)} {{}}, {cell_words(high, other)} {{}}"
                step = [
                    numbers.term(-numbers.sign, self.axis, low, other),
                    numbers.term(numbers.sign, self.axis, high, other),
                ]
                found.append(Comparison(step, -self.by, words))
                if math.isfinite(self.most):
                    back = [
                        numbers.term(numbers.sign, self.axis, low, other),
                        numbers.term(-numbers.sign, self.axis, high, other),
                    ]
                    found.append(Comparison(back, self.most, words))
        return found


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

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each label against the one, from both sides."""
        steps = [pair for label in self.along for pair in ((label, self.to), (self.to, label))]
        tests = [Rising(along=s, axis=self.axis, at=self.at, by=-self.within) for s in steps]
        return [comparison for test in tests for comparison in test(numbers, others)]


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

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each of them against each of the rest."""
        chosen = numbers.labels(self.axis, self.labels)
        rest = [x for x in numbers.labels(self.axis, self.among) if x not in chosen]
        pairs = [(b, a) if self.most else (a, b) for a, b in product(chosen, rest)]
        tests = [Rising(along=pair, axis=self.axis, at=self.at) for pair in pairs]
        return [comparison for test in tests for comparison in test(numbers, others)]


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

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each number, from both sides."""
        del others
        bounds = [(1.0, -self.low), (-1.0, self.high)]
        cells = product(
            numbers.labels(other_axis(self.axis), self.at), numbers.labels(self.axis, self.along)
        )
        return [
            Comparison(
                [numbers.term(weight, self.axis, label, other)],
                offset,
                f"{cell_words(label, other)} {{}}",
            )
            for other, label in cells
            for weight, offset in bounds
            if math.isfinite(offset)
        ]
