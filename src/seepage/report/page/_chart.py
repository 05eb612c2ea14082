"""Charts: dots on strips above an axis, and curves over two axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from seepage.audit.results import Result
from seepage.report.page._chart_names import LabelBox, Name, Spot, place_names
from seepage.report.page._document import level_class, macros, make_scrollable


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`; values beyond an end are drawn at that end."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Per cent from the low end.

        Example:
            >>> Axis(0.0, 40.0).place(10.0), Axis(0.0, 40.0).place(math.inf)
            (25.0, 100.0)
        """
        inside = min(max(value, self.low), self.high)
        return round(100 * (inside - self.low) / (self.high - self.low), 2)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside the axis, about `count` of them.

        Example:
            >>> Axis(0.0, 47.0).ticks()
            [0.0, 10.0, 20.0, 30.0, 40.0]
        """
        wanted = (self.high - self.low) / count
        scale = 10.0 ** math.floor(math.log10(wanted))
        step = next(scale * nice for nice in (1, 2, 5, 10) if scale * nice >= wanted * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(index * step, 10) for index in range(first, last + 1)]

    def labels(self, count: int = 5) -> list[tuple[float, str]]:
        """Round values inside the axis, and how each is written."""
        return [(tick, f"{tick:g}") for tick in self.ticks(count)]


def span_axis(values: Iterable[float], *, room: float = 0.05) -> Axis:
    """Make an axis that holds all finite values, with a little room at both ends."""
    finite: Sequence[float] = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    spare = room * (high - low) or 1.0
    return Axis(low - spare, high + spare)


@dataclass(frozen=True)
class Shape:
    """One element of a drawing: its name, its attributes and the text in it."""

    element: str
    attributes: dict[str, object]
    text: str = ""


def draw_line(left: str, right: str, top: int | str, bottom: int | str, kind: str) -> Shape:
    """A straight line of a class of the style sheet."""
    return Shape("line", {"x1": left, "x2": right, "y1": top, "y2": bottom, "class": kind})


def draw_bar(
    kind: str, left: float, top: float, *, height: float, width: float | str, tip: str | None = None
) -> Shape:
    """A rectangle that begins at so many per cent of the width; a width in pixels has no unit."""
    place: dict[str, object] = {"class": kind, "x": f"{left}%", "y": top}
    return Shape("rect", {**place, "width": width, "height": height, "data-tip": tip})


def draw_dot(result: Result, across: float, *, height: float, radius: int) -> Shape:
    """One person on a strip, at so many per cent of its width."""
    key = result.name
    tip = f"{key}: {result.amount.words()} by {result.record.attack.name} ({result.level})"
    return Shape(
        "circle",
        {"class": f"dot {level_class(result.level)}", "cx": f"{across}%",
         "cy": height, "r": radius, "data-tip": tip, "data-key": key},
    )  # fmt: skip


@dataclass(frozen=True)
class Strip:
    """One line of a chart: its label, a note in small type, and what is drawn.

    The summary is for those who do not see it; the keyboard reaches the strip.
    """

    label: str
    note: str
    height: int
    summary: str
    shapes: Sequence[Shape]


def strip_chart(
    strips: Iterable[Strip], axis: Axis, *ticks: Callable[[float], str], label: str
) -> Markup:
    """Draw strips above one axis; `label` tells screen readers what the chart shows.

    There is a line of text below the axis for each function of a value in `ticks`.
    """
    anchors = {axis.low: "start", axis.high: "end"}
    scale = [
        Shape(
            "text",
            {"x": f"{axis.place(tick)}%", "y": 14 + 16 * number,
             "text-anchor": anchors.get(tick, "middle")},
            write(tick),
        )
        for tick in axis.ticks(6)
        for number, write in enumerate(ticks)
    ]  # fmt: skip
    drawn: Markup = macros("chart").strips(label, list(strips), scale, 2 + 16 * len(ticks))
    return drawn


# In pixels; the style sheet has the same height. A chart with names has one of two widths: the
# first fits on paper, the second fills the page.
HEIGHT, DOT = 240, 6
WIDTHS = (640, 960)


@dataclass(frozen=True)
class Curve:
    """One line: its points, its tooltip and the style class that colours it.

    Marks that share a `key` are highlighted together.
    """

    points: Sequence[tuple[float, float]]
    tip: str
    kind: str
    key: str


def span_curves(curves: Sequence[Curve]) -> tuple[Axis, Axis]:
    """Make an axis across and one up that hold all points."""
    xs, ys = zip(*(point for curve in curves for point in curve.points), strict=True)
    return span_axis(xs), span_axis(ys)


@dataclass(frozen=True)
class Mark:
    """One point: its tooltip, the label written near it (if any), and its style class."""

    x: float
    y: float
    tip: str
    label: str
    kind: str


@dataclass(frozen=True)
class Labels:
    """A title and `(value, text)` ticks for each axis."""

    across: str
    up: str
    ticks_across: Sequence[tuple[float, str]] = field(default=())
    ticks_up: Sequence[tuple[float, str]] = field(default=())


def line_chart(
    across: Axis,
    up: Axis,
    labels: Labels,
    *,
    label: str,
    curves: Sequence[Curve] = (),
    marks: Sequence[Mark] = (),
) -> Markup:
    """Draw curves and marks over two axes; `label` tells screen readers what the chart shows.

    An axis without ticks has round numbers.
    """
    width, names = _place_names(marks, across, up)
    ticks_across, ticks_up = labels.ticks_across or across.labels(), labels.ticks_up or up.labels()
    levels = [f"{100 - up.place(value)}%" for value, _ in ticks_up]
    drawn: Markup = macros("chart").lines(
        label,
        labels,
        [(across.place(value), text) for value, text in ticks_across],
        [(up.place(value), text) for value, text in ticks_up],
        [draw_line("0%", "100%", level, level, "rule") for level in levels],
        [_draw_curve(curve, across, up) for curve in curves],
        [
            *(_draw_mark(mark, across, up) for mark in marks),
            *(_draw_leader(*name.leader, width) for name in names if name.apart),
            *(_draw_name(name, width) for name in names),
        ],
        width if names else None,
    )
    return make_scrollable(label, drawn) if names else drawn


@dataclass(frozen=True)
class PercentLine:
    """Percentages at numbered places, with the style classes of the line and of its dots."""

    name: str
    points: Sequence[tuple[int, float]]
    kind: str
    dots: str


def percent_chart(
    places: Sequence[str], lines: Sequence[PercentLine], *, across: str, up: str, label: str
) -> Markup:
    """Draw percentages against places, of which about eight are named below."""
    room = 0.05 * max(1, len(places) - 1)
    stride = -(-len(places) // 8)
    named = [(float(i), places[i]) for i in range(0, len(places), stride)]
    labels = Labels(across, up, named, [(float(tick), f"{tick}") for tick in (0, 25, 50, 75, 100)])
    return line_chart(
        Axis(-room, room + max(1, len(places) - 1)),
        Axis(-3, 103),
        labels,
        label=label,
        curves=[Curve(line.points, line.name, line.kind, line.name) for line in lines],
        marks=[
            Mark(place, share, f"{line.name}, {places[place]}: {share:.0f} %", "", line.dots)
            for line in lines
            for place, share in line.points
        ],
    )


def _place_names(marks: Sequence[Mark], across: Axis, up: Axis) -> tuple[int, list[Name]]:
    """Find the width at which most names fit next to their marks, and their places.

    A chart with names keeps this width: if it stretched, names would leave their marks.
    """

    def place(width: int) -> list[Name]:
        def spot(mark: Mark) -> Spot:
            return across.place(mark.x) * width / 100, (100 - up.place(mark.y)) * HEIGHT / 100

        named = {mark.label: spot(mark) for mark in marks if mark.label}
        others = [LabelBox.about(spot(mark), DOT) for mark in marks if mark.label not in named]
        return place_names(named, LabelBox(0, 0, width, HEIGHT), dot=DOT, around=others)

    placed = [(width, place(width)) for width in WIDTHS]
    return min(placed, key=lambda pair: (-len(pair[1]), sum(name.apart for name in pair[1])))


def _draw_curve(curve: Curve, across: Axis, up: Axis) -> Shape:
    places = ((across.place(x), 100 - up.place(y)) for x, y in curve.points)
    points = " ".join(f"{x:.4g},{y:.4g}" for x, y in places)
    told = {"data-tip": curve.tip, "data-key": curve.key} if curve.tip else {}
    return Shape("polyline", {"class": f"curve {curve.kind}", "points": points, **told})


def _draw_mark(mark: Mark, across: Axis, up: Axis) -> Shape:
    x, y = across.place(mark.x), 100 - up.place(mark.y)
    return Shape("circle", {"class": f"dot {mark.kind}", "cx": f"{x}%", "cy": f"{y}%", "r": DOT,
                            "data-tip": mark.tip, "data-key": mark.label})  # fmt: skip


def _draw_name(name: Name, width: int) -> Shape:
    box = name.box
    x, y = _share(((box.left + box.right) / 2, box.bottom - 3.5), width)
    return Shape("text", {"class": "name", "x": x, "y": y, "text-anchor": "middle"}, name.text)


def _draw_leader(start: Spot, end: Spot, width: int) -> Shape:
    (x1, y1), (x2, y2) = _share(start, width), _share(end, width)
    return draw_line(x1, x2, y1, y2, "leader")


def _share(spot: Spot, width: int) -> tuple[str, str]:
    return f"{100 * spot[0] / width:.2f}%", f"{100 * spot[1] / HEIGHT:.2f}%"
