"""The lines of a reproduced table: what the paper printed, what Seepage found, how they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seepage.audit._words import count_noun
from seepage.report import Interval, mean_interval
from seepage_papers.measures import STATISTICS, Measure, measure
from seepage_papers.sources import Sample
from seepage_papers.table import Cell, PaperTable, Published


@dataclass(frozen=True)
class Line:
    """One published number, and ours.

    Args:
        row: Label of its row.
        column: Label of its column.
        measure: Name of the convention.
        statistic: How people became one number.
        paper: What is printed; None if nothing is.
        seepage: What was found; None if nothing came back.
        interval: Of the mean over people and seeds; None for other statistics and single numbers.
        people: How many values ours is of.
        standard: Ours in the usual convention; None where that is the same.
        why: A known reason for a difference in this row or column.
        each: Ours of every person, by a name that is the same in all cells of a table.
    """

    row: str
    column: str
    measure: str
    statistic: str
    paper: float | None
    seepage: float | None
    interval: Interval | None
    people: int
    standard: float | None
    why: str
    each: Mapping[str, float] = field(default_factory=dict)

    @property
    def difference(self) -> float | None:
        """Ours less the paper's; None where one of them is missing."""
        if self.paper is None or self.seepage is None:
            return None
        return self.seepage - self.paper

    def plain(self) -> dict[str, Any]:
        """The line as data that JSON can hold."""
        interval = self.interval and [_rounded(self.interval.low), _rounded(self.interval.high)]
        each = {who: _rounded(value) for who, value in self.each.items()}
        named = {**vars(self), "difference": self.difference, "interval": interval, "each": each}
        return {k: _rounded(v) if isinstance(v, float) else v for k, v in named.items()}


def line(table: PaperTable, cell: Cell, block: Published, sample: Sample) -> Line:
    """The line of one number in one cell."""
    row, column = table.rows[cell.row], table.columns[cell.column]
    kind = measure(block.measure)
    own = kind.function is None
    return Line(
        row=cell.labels[0],
        column=cell.labels[1],
        measure=block.measure,
        statistic=block.statistic,
        paper=block.value(cell.row, cell.column),
        seepage=_reduced(sample.values, block, kind),
        interval=_interval(sample, block),
        people=len(sample.values),
        standard=None if own else _reduced(sample.standard, block, measure(kind.standard)),
        why=" ".join(why for why in (row.why, column.why, _missed(sample.missed)) if why),
        each=sample.each if block.statistic in ("mean", "median") else {},
    )


def _missed(reasons: Sequence[str]) -> str:
    """Why batches gave nothing, each reason once.

    Example:
        >>> _missed(["the update is zero", "the update is zero."])
        'Not recovered for 2 batches: the update is zero.'
    """
    told = [
        f"Not recovered for {count_noun(count, 'batch', 'batches')}: {reason}."
        for reason, count in Counter(reason.rstrip(".") for reason in reasons).items()
    ]
    return " ".join(told)


def _reduced(values: Sequence[float], block: Published, kind: Measure) -> float | None:
    if not values:
        return None
    return STATISTICS.get(block.statistic, STATISTICS["mean"])(values, kind.higher_leaks_more)


def _interval(sample: Sample, block: Published) -> Interval | None:
    values = sample.values
    finite = len(values) > 1 and all(map(math.isfinite, values))
    if not finite or block.statistic != "mean":
        return None
    return mean_interval(values, sample.updates or None)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
