"""The figure of a reproduced table, drawn by the report's own charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from seepage.report.page._chart import Axis, Curve, Labels, Mark, line_chart, span_axis
from seepage.report.page._document import (
    Section,
    document,
    join_markup,
    macros,
    table,
)
from seepage_papers.lines import Line
from seepage_papers.measures import measure
from seepage_papers.reproduction import WORDS, Reproduction

# Letters that fit below a chart.
FITTING = 80
KINDS = ("leak", "trace", "safe")
Number = tuple[str, str]


def page(found: Reproduction) -> str:
    """One self-contained HTML page: a chart of every measure, and the table."""
    paper = found.table
    charts = [_chart(found, lines, number) for number, lines in _numbers(found).items()]
    if paper.figure == "tradeoff":
        charts.insert(0, _tradeoff(found))
    columns = [(title, "" if title in WORDS else "number") for title in found.header]
    told = table("Table", f"{paper.name}, {found.scale}", columns, found.rows)
    sections = [
        Section("figure", "Figure", "A ring is what the paper printed.", join_markup(*charts)),
        Section("table", "Table", " ".join(found.notes), told),
    ]
    first = macros("opening").opening(
        f"{paper.name}, {paper.place} of {paper.citation}", "", paper.title, details=[paper.claim]
    )
    return document(f"{paper.name}: {paper.title}", first=first, sections=sections, private=False)


def _numbers(found: Reproduction) -> dict[Number, list[Line]]:
    """The lines of each kind of number."""
    kinds: dict[Number, list[Line]] = {}
    for line in found.lines:
        kinds.setdefault((line.measure, line.statistic), []).append(line)
    return kinds


def _chart(found: Reproduction, lines: Sequence[Line], number: Number) -> Markup | None:
    """Rows (or columns) across, one curve for each of the others."""
    by_rows = found.table.figure != "columns"
    across = list(dict.fromkeys(line.row if by_rows else line.column for line in lines))
    series: dict[str, list[Line]] = {}
    for line in lines:
        series.setdefault(line.column if by_rows else line.row, []).append(line)
    heights = [v for line in lines for v in (line.seepage, line.paper) if v is not None]
    heights += [v for line in lines if (i := line.interval) for v in (i.low, i.high)]
    if not any(map(math.isfinite, heights)):
        return None
    x, y = Axis(-0.5, max(len(across) - 0.5, 0.5)), span_axis(heights, room=0.1)
    curves: list[Curve] = []
    marks: list[Mark] = []
    for kind, (name, group) in zip(KINDS * len(series), series.items(), strict=False):
        points = [
            (float(across.index(line.row if by_rows else line.column)), line) for line in group
        ]
        ours = [(at, line.seepage) for at, line in points if line.seepage is not None]
        if ours:
            curves.append(Curve(ours, name, kind, name))
        marks += [
            Mark(at, value, f"{name}: {value:.4g}", name if at == ours[-1][0] else "", kind)
            for at, value in ours
        ]
        marks += [_theirs(at, line) for at, line in points if line.paper is not None]
        curves += [
            Curve([(at, i.low), (at, i.high)], "", kind, "")
            for at, line in points
            if (i := line.interval) is not None
        ]
    named, statistic = number
    words = measure(named).words + ("" if statistic == "mean" else f", {statistic}")
    below, ticks = _across(across)
    labels = Labels(below, words, ticks)
    return line_chart(x, y, labels, label=words, curves=curves, marks=marks)


def _across(names: Sequence[str]) -> tuple[str, list[tuple[float, str]]]:
    """A title and ticks: the names, or numbers where the names would not fit side by side."""
    if sum(map(len, names)) <= FITTING:
        return "", [(float(i), name) for i, name in enumerate(names)]
    told = " · ".join(f"{number} {name}" for number, name in enumerate(names, 1))
    return told, [(float(i), str(i + 1)) for i in range(len(names))]


def _theirs(at: float, line: Line) -> Mark:
    value = line.paper if line.paper is not None else math.nan
    return Mark(at, value, f"paper, {line.row} {line.column}: {value:g}", "", "paper")


def _tradeoff(found: Reproduction) -> Markup | None:
    """The second number across, the first up, one mark per row."""
    first, second, *_ = _numbers(found).values()
    pairs = [
        (b.seepage, a.seepage, a.row)
        for a, b in zip(first, second, strict=False)
        if a.seepage is not None and b.seepage is not None
    ]
    if not pairs:
        return None
    x, y = (
        span_axis(values, room=0.1) for values in ([p[0] for p in pairs], [p[1] for p in pairs])
    )
    across, up = measure(second[0].measure).words, measure(first[0].measure).words
    labels = Labels(across, up)
    marks = [Mark(u, v, f"{row}: {v:.3g} at {u:.3g}", row, "trace") for u, v, row in pairs]
    return line_chart(x, y, labels, label=f"{up} against {across}", marks=marks)
