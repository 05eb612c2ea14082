"""Comparisons that need more: of gaps, of best labels, with another table, with the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from seepage_papers.comparisons import Others, Rising
from seepage_papers.evidence import Comparison, Term
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

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """One comparison of two gaps."""
        del others
        low, high = numbers.labels(self.axis, self.along)
        first, last = numbers.labels(other_axis(self.axis), self.at)
        corners = [(1.0, low, first), (-1.0, high, first), (-1.0, low, last), (1.0, high, last)]
        terms = [numbers.term(w * numbers.sign, self.axis, x, place) for w, x, place in corners]
        words = f"{low} {{}} and {high} {{}} at {first}, {{}} and {{}} at {last}"
        return [Comparison(terms, 0.0, words)]


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

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each label where another is ahead of it by most."""
        labels = numbers.labels(self.axis, self.along)
        places = numbers.labels(other_axis(self.axis), self.at)
        found = []
        for label in labels:
            ahead = [
                comparison
                for place, rival in product(places, labels)
                if rival != label
                for comparison in Rising(along=(label, rival), axis=self.axis, at=(place,))(
                    numbers, others
                )
            ]
            leads = [sum(t.weight * t.value for t in c.terms) for c in ahead]
            if any(map(math.isnan, leads)):
                return [Comparison([Term(1.0, None)], 0.0, "{}")]
            best = ahead[max(range(len(leads)), key=leads.__getitem__)]
            found.append(Comparison(best.terms, 0.0, best.words, tries=len(ahead)))
        return found


@dataclass(frozen=True, kw_only=True)
class Somewhere:
    """At least one number leaks as much as that; premises are of this kind.

    Args:
        leaks: What has to leak, as the measure counts it.
        along: Labels of one axis; all if none.
        axis: Which, "rows" or "columns".
        at: Labels of the other; all if none.
    """

    leaks: float
    along: Sequence[str] = ()
    axis: str = "rows"
    at: Sequence[str] = ()

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """The one that leaks most."""
        del others
        places = numbers.labels(other_axis(self.axis), self.at)
        cells = list(product(numbers.labels(self.axis, self.along), places))
        terms = {cell: numbers.term(numbers.sign, self.axis, *cell) for cell in cells}
        known = {cell: t for cell, t in terms.items() if not math.isnan(t.value)}
        if not known:
            return []
        most = max(known, key=lambda cell: known[cell].weight * known[cell].value)
        offset = -numbers.sign * self.leaks
        return [Comparison([known[most]], offset, f"at most {cell_words(*most)} {{}}")]


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

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each cell of both."""
        there = others(self.than)
        rows = [x for x in numbers.labels("rows", self.at) if x in there.labels("rows")]
        return [
            Comparison(
                [
                    numbers.term(-numbers.sign, "rows", row, column),
                    there.term(numbers.sign, "rows", row, column),
                ],
                -self.by,
                f"{cell_words(row, column)} {{}}, in {self.than} {{}}",
            )
            for row, column in product(rows, numbers.labels("columns", self.columns))
        ]


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Every number is the one that is printed, up to the difference `within`."""

    within: float

    def __call__(self, numbers: Numbers, others: Others) -> list[Comparison]:
        """Each number that is printed, from both sides."""
        del others
        found = []
        for line in numbers.lines:
            printed = line["paper"]
            if isinstance(printed, int | float):
                words = f"{cell_words(str(line['row']), str(line['column']))} {{}}"
                found += [
                    Comparison([Term(weight, line)], self.within - weight * printed, words)
                    for weight in (1.0, -1.0)
                ]
        return found
