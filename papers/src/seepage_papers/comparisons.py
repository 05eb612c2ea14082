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

from seepage_papers.evidence import Comparison, Term
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
        at_least: Only leaking less is a difference: a defense that does not protect may do worse.
    """

    along: Sequence[str]
    to: str
    within: float
    axis: str = "rows"
    at: Sequence[str] = ()
    at_least: bool = False

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each label against the one, from both sides or from below."""
        steps = [(self.to, label) for label in self.along]
        if not self.at_least:
            steps += [(label, self.to) for label in self.along]
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
        strongest: Compare only that of `at` where most leaks, which may differ between labels.
        by: The least difference.
    """

    labels: Sequence[str]
    most: bool
    axis: str = "rows"
    among: Sequence[str] = ()
    at: Sequence[str] = ()
    strongest: bool = False
    by: float = 0.0

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each of them against each of the rest."""
        chosen = numbers.labels(self.axis, self.labels)
        rest = [x for x in numbers.labels(self.axis, self.among) if x not in chosen]
        pairs = [(b, a) if self.most else (a, b) for a, b in product(chosen, rest)]
        if self.strongest:
            return [self._compare_strongest(numbers, *pair) for pair in pairs]
        tests = [Rising(along=p, axis=self.axis, at=self.at, by=self.by) for p in pairs]
        return [comparison for test in tests for comparison in test(numbers, others)]

    def _compare_strongest(self, numbers: Numbers, low: str, high: str) -> Comparison:
        """Two labels, each where most leaks of it; a cell without a number counts as most."""

        def leaks(cell: tuple[str, Term]) -> float:
            value = cell[1].value
            return math.inf if math.isnan(value) else numbers.sign * value

        words, terms = [], []
        for sign, label in ((-numbers.sign, low), (numbers.sign, high)):
            places = numbers.labels(other_axis(self.axis), self.at)
            cells = [(place, numbers.term(sign, self.axis, label, place)) for place in places]
            place, term = max(cells, key=leaks)
            words.append(f"{cell_words(label, place)} {{}}")
            terms.append(term)
        return Comparison(terms, -self.by, ", ".join(words))


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
