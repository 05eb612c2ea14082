"""How sure a comparison of cells is: paired over people where that is possible.

A comparison is a sum of cells plus a constant, and it is as claimed where that is at least zero.
Its interval is of the mean (or the median) over people. Where the cells are of the same people,
each person is their own control. People of one update share its search, so that only updates are
independent draws, and one update of several people has no interval. Runs that were recorded without
people have only intervals of their means: those are taken for independent, which is cautious, since
the same people are easy or hard in every cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from scipy import stats

from seepage.audit._words import count_noun

CONFIDENCE = 0.95
# Half the width of a 95 % interval, in standard errors.
WIDTH = 1.959964
LineData = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Term:
    """A cell in a sum.

    Args:
        weight: What it is multiplied by.
        line: As `Line.plain` has it; None where the run has no such cell.
        usual: Read it in the usual convention.
    """

    weight: float
    line: LineData | None
    usual: bool = False

    @property
    def value(self) -> float:
        """What was found; NaN if nothing was."""
        if self.line is None:
            return math.nan
        found = self.line["seepage"]
        if self.usual and self.line.get("standard") is not None:
            found = self.line["standard"]
        return float(found) if isinstance(found, int | float) else math.nan

    @property
    def printed(self) -> float:
        """What the paper has there; NaN if nothing is printed."""
        found = None if self.line is None else self.line.get("paper")
        return float(found) if isinstance(found, int | float) else math.nan

    @property
    def each(self) -> Mapping[str, float]:
        """Of every person; empty where they are not recorded, or in another convention."""
        if self.line is None or self.usual:
            return {}
        # Reports write what JSON has no number for, an exact PSNR, as a word.
        return {who: float(value) for who, value in (self.line.get("each") or {}).items()}

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 of a single number, infinite where it is not known."""
        line = self.line or {}
        if len(self.each) > 1:
            return _error(self.each)
        if line.get("interval") and not self.usual:
            low, high = line["interval"]
            return float(high - low) / 2 / WIDTH
        return 0.0 if line.get("people", 1) <= 1 else math.inf


@dataclass(frozen=True, eq=False)
class Comparison:
    """Cells that compare as claimed where `sum(weight * cell) + offset` is at least zero.

    Args:
        terms: The cells.
        offset: What is added.
        words: The cells in words, with `{}` for the number of each.
        tries: Of how many comparisons this one was picked as the largest.
    """

    terms: Sequence[Term]
    offset: float
    words: str
    tries: int = 1

    def told(self) -> str:
        """The comparison in words, with our numbers."""
        return self.words.format(*(f"{term.value:.4g}" for term in self.terms))

    def found(self) -> str:
        """Our numbers alone."""
        return ", ".join(f"{term.value:.3g}" for term in self.terms)

    def printed(self) -> str:
        """The paper's numbers in the same order; empty where one is not printed."""
        numbers = [term.printed for term in self.terms]
        return "" if any(map(math.isnan, numbers)) else ", ".join(f"{n:.4g}" for n in numbers)


@dataclass(frozen=True)
class Margin:
    """By how much a comparison turns out as claimed.

    Args:
        value: At least zero where it does.
        low: End of the interval.
        high: The other end; it is infinite where several people have no interval.
        people: How many pairs, or of unpaired cells the fewest people; 1 for single numbers.
        updates: How many updates these people sent.
        paired: Whether people were compared with themselves.
    """

    value: float
    low: float
    high: float
    people: int
    updates: int
    paired: bool

    def __str__(self) -> str:
        """The margin, its interval, and of how many people.

        Example:
            >>> str(Margin(2.0, 0.5, 3.5, 16, 4, True)), str(Margin(0.0, 0.0, 0.0, 1, 1, False))
            ('+2 (0.5 to 3.5), 16 people in 4 updates, paired', '+0')
        """
        told = self.interval()
        if self.low == self.high:
            return told
        told += f", {count_noun(self.people, 'person', 'people')}"
        if self.updates < self.people:
            told += f" in {count_noun(self.updates, 'update')}"
        return told + ", paired" * self.paired

    def interval(self) -> str:
        """The margin and its interval; a single number has none, nor do people of one update."""
        if self.low == self.high:
            return f"{self.value:+.3g}"
        if math.isinf(self.low) and math.isinf(self.high):
            return f"{self.value:+.3g} (not known)"
        return f"{self.value:+.3g} ({self.low:.3g} to {self.high:.3g})"


def margin(comparison: Comparison, *, centre: str = "mean", doubt: float = 0.05) -> Margin:
    """The margin of a comparison with its interval.

    Args:
        comparison: The cells.
        centre: "mean" or "median" over people.
        doubt: How often the interval may miss, on both sides together.
    """
    doubt = doubt / comparison.tries
    own = _pairs(comparison)
    if own and (centre == "median" or not all(map(math.isfinite, own.values()))):
        value, low, high = _median(list(_by_update(own).values()), doubt)
        return Margin(value, low, high, len(own), len(_by_update(own)), paired=True)
    if own:
        value, error, people = fmean(own.values()), _error(own), len(own)
        updates = len(_by_update(own))
    else:
        terms = comparison.terms
        value = comparison.offset + sum(term.weight * _centre(term, centre) for term in terms)
        error = math.hypot(*(term.weight * term.error for term in terms))
        people = min(int((term.line or {}).get("people", 1)) for term in terms)
        updates = min([people, *(len(_by_update(term.each)) for term in terms if term.each)])
    half = _half(error, updates, doubt)
    return Margin(value, value - half, value + half, people, updates, paired=bool(own))


def _centre(term: Term, centre: str) -> float:
    return median(term.each.values()) if term.each and centre == "median" else term.value


def _pairs(comparison: Comparison) -> dict[str, float]:
    """The comparison for each person, where every cell has the same people."""
    every = [term.each for term in comparison.terms]
    if any(each.keys() != every[0].keys() for each in every):
        return {}
    weights = [term.weight for term in comparison.terms]
    return {
        who: comparison.offset + sum(w * each[who] for w, each in zip(weights, every, strict=True))
        for who in every[0]
    }


def _by_update(each: Mapping[str, float]) -> dict[str, list[float]]:
    """The values of each update, whose name people's begin with."""
    found: dict[str, list[float]] = {}
    for who, value in each.items():
        found.setdefault(who.rsplit(".", 1)[0], []).append(value)
    return found


def _error(each: Mapping[str, float]) -> float:
    """Standard error of the mean over people, of whom whole updates were drawn.

    Example:
        >>> alone = _error({"a.0": 1.0, "b.0": 2.0, "c.0": 8.0, "d.0": 9.0})
        >>> alone < _error({"a.0": 1.0, "a.1": 2.0, "b.0": 8.0, "b.1": 9.0})
        True
        >>> _error({"a.0": 1.0, "a.1": 2.0}), _error({"a.0": 1.0})
        (inf, 0.0)
    """
    mean, updates = fmean(each.values()), _by_update(each).values()
    if len(updates) == 1:
        return 0.0 if len(each) == 1 else math.inf
    apart = sum(sum(value - mean for value in values) ** 2 for values in updates)
    return math.sqrt(len(updates) / (len(updates) - 1) * apart) / len(each)


def _half(error: float, updates: int, doubt: float) -> float:
    if error == 0 or math.isinf(error):
        return error
    return float(error * stats.t.ppf(1 - doubt / 2, max(updates - 1, 1)))


def _median(updates: Sequence[Sequence[float]], doubt: float) -> tuple[float, float, float]:
    """The median over people, and the order statistics of updates' medians that bound it.

    Nothing bounds it below six updates.

    Example:
        >>> _median([[3.0], [1.0], [2.0], [5.0], [4.0], [6.0]], 0.05)
        (3.5, 1.0, 6.0)

    References:
        Sign test: the number of updates below the median is binomial.
    """
    middle = median(value for values in updates for value in values)
    ordered = sorted(map(median, updates))
    # Ranks that many doubts below one half hold between them.
    rank = int(stats.binom.ppf(doubt / 2, len(ordered), 0.5))
    if stats.binom.cdf(rank, len(ordered), 0.5) > doubt / 2:
        rank -= 1
    if rank < 0:
        return middle, -math.inf, math.inf
    return middle, ordered[rank], ordered[-1 - rank]
