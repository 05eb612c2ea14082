"""Comparisons that need more: of gaps, of best labels, with another table, with the paper."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from seepage_papers.comparisons import Margin, Others
from seepage_papers.numbers import Numbers, cell_words, other_axis


@dataclass(frozen=True, kw_only=True)
class Widens:
    """The growth from one label to another is larger at the last than at the first.

    Args:
        along: Two labels of one axis.
        at: Two labels of the other.
        axis: Which, "rows" or "columns".
    """

    along: Sequence[str]
    at: Sequence[str]
    axis: str = "rows"

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """One comparison of two gaps."""
        del others
        low, high = numbers.labels(self.axis, self.along)
        places = numbers.labels(other_axis(self.axis), self.at)
        first, last = (
            numbers.sign * (numbers.at(self.axis, high, x) - numbers.at(self.axis, low, x))
            for x in places
        )
        words = f"from {low} to {high}: {first:+.4g} at {places[0]}, {last:+.4g} at {places[1]}"
        return [Margin(last - first, words)]


@dataclass(frozen=True, kw_only=True)
class Varied:
    """No label leaks most everywhere.

    Args:
        along: Labels of one axis; all if none.
        axis: Which, "rows" or "columns".
        at: Labels of the other; all if none.
    """

    along: Sequence[str] = ()
    axis: str = "rows"
    at: Sequence[str] = ()

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """One comparison: how many labels are the best somewhere, less two."""
        del others
        best: Counter[str] = Counter()
        labels = numbers.labels(self.axis, self.along)
        for place in numbers.labels(other_axis(self.axis), self.at):
            leaks = {x: numbers.sign * numbers.at(self.axis, x, place) for x in labels}
            if any(map(math.isnan, leaks.values())):
                return [Margin(math.nan, "")]
            best[max(leaks, key=leaks.__getitem__)] += 1
        words = ", ".join(f"{label} is the strongest {n} times" for label, n in best.most_common())
        return [Margin(float(len(best) - 2), words)]


@dataclass(frozen=True, kw_only=True)
class Less:
    """Less leaks than in another table, at the cells that both have.

    Args:
        than: Name of the other table.
        at: Labels of rows; all if none.
        columns: Labels of columns; all if none.
        by: The least difference.
    """

    than: str
    at: Sequence[str] = ()
    columns: Sequence[str] = ()
    by: float = 0.0

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """Each cell of both."""
        there = others(self.than)
        rows = [x for x in numbers.labels("rows", self.at) if x in there.labels("rows")]
        margins = []
        for row in rows:
            for column in numbers.labels("columns", self.columns):
                ours, theirs = (n.at("rows", row, column) for n in (numbers, there))
                words = f"{cell_words(row, column)} {ours:.4g}, in {self.than} {theirs:.4g}"
                margins.append(Margin(numbers.sign * (theirs - ours) - self.by, words))
        return margins


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Every number is the one that is printed.

    Args:
        within: The largest difference.
    """

    within: float

    def __call__(self, numbers: Numbers, others: Others) -> list[Margin]:
        """Each number that is printed."""
        del others
        margins = []
        for line in numbers.lines:
            ours, printed = line["seepage"], line["paper"]
            if isinstance(printed, int | float):
                found = float(ours) if isinstance(ours, int | float) else math.nan
                words = f"{cell_words(str(line['row']), str(line['column']))} {found:.4g}"
                margin = self.within - abs(found - printed)
                margins.append(Margin(margin, f"{words}, printed {printed:.4g}"))
        return margins
