"""A line chart that keeps its letters in shape; without names it stretches with the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.report.page.axis import Axis
from seepage.report.page.markup import Markup, element, scrolling
from seepage.report.page.names import Box, Name, Spot, placed

# In pixels, the height as in the style sheet. Of the widths of a chart with names the first fits on
# paper, the second fills the page.
HEIGHT, DOT = 240, 6
WIDTHS = (640, 960)


@dataclass(frozen=True)
class Curve:
    """One line.

    Args:
        points: Coordinates `(x, y)`.
        tip: What is said about it.
        kind: Class that colours it.
        key: Marks that share a key are highlighted together.
    """

    points: Sequence[tuple[float, float]]
    tip: str
    kind: str
    key: str


@dataclass(frozen=True)
class Mark:
    """One point with a name.

    Args:
        x: Across.
        y: Up.
        tip: What is said about it.
        label: Written near it, if not empty.
        kind: Class that colours it.
    """

    x: float
    y: float
    tip: str
    label: str
    kind: str


@dataclass(frozen=True)
class Labels:
    """What stands on the axes: a title and `(value, text)` ticks for each."""

    across: str
    up: str
    ticks_across: Sequence[tuple[float, str]]
    ticks_up: Sequence[tuple[float, str]]


def line_chart(
    across: Axis,
    up: Axis,
    labels: Labels,
    *,
    label: str,
    curves: Sequence[Curve] = (),
    marks: Sequence[Mark] = (),
) -> Markup:
    """Draw curves and marks over two axes.

    Args:
        across: Horizontal axis.
        up: Vertical axis.
        labels: Of both axes.
        label: What the chart shows, for those who do not see it.
        curves: Lines.
        marks: Points.
    """
    width, names = _names(marks, across, up)
    stretched = element(
        "svg",
        {"viewBox": "0 0 100 100", "preserveAspectRatio": "none", "width": "100%",
         "height": "100%", "overflow": "visible"},
        *(_curve(curve, across, up) for curve in curves),
    )  # fmt: skip
    plot = element(
        "svg",
        {"class": "plot", "tabindex": 0, "role": "img", "aria-label": label},
        *(_rule(up.place(value)) for value, _ in labels.ticks_up),
        stretched,
        *(_mark(mark, across, up) for mark in marks),
        *(_leader(*name.leader, width) for name in names if name.apart),
        *(_name(name, width) for name in names),
    )
    drawn = element(
        "figure",
        {"class": "chart lines", "role": "group", "aria-label": label,
         "style": f"width:calc({width}px + 3rem)" if names else None},
        element("div", {"class": "up-title"}, labels.up),
        element("div", {"class": "ticks-up"}, *_ticks(labels.ticks_up, up, "bottom")),
        plot,
        element("div", {"class": "ticks-across"}, *_ticks(labels.ticks_across, across, "left")),
        element("div", {"class": "across-title"}, labels.across),
    )  # fmt: skip
    return scrolling(label, drawn) if names else drawn


def _names(marks: Sequence[Mark], across: Axis, up: Axis) -> tuple[int, list[Name]]:
    """The least width at which the most names find a place next to their marks, and the places.

    A chart with names keeps this width: where it stretched, names would leave their marks.
    """

    def attempt(width: int) -> list[Name]:
        def spot(mark: Mark) -> Spot:
            return across.place(mark.x) * width / 100, (100 - up.place(mark.y)) * HEIGHT / 100

        named = {mark.label: spot(mark) for mark in marks if mark.label}
        others = [Box.about(spot(mark), DOT) for mark in marks if mark.label not in named]
        return placed(named, Box(0, 0, width, HEIGHT), dot=DOT, around=others)

    def want(width: int) -> tuple[int, int]:
        return -len(tried[width]), sum(name.apart for name in tried[width])

    tried = {width: attempt(width) for width in WIDTHS}
    width = min(WIDTHS, key=want)
    return width, tried[width]


def _ticks(ticks: Sequence[tuple[float, str]], axis: Axis, side: str) -> list[Markup]:
    return [
        element("span", {"style": f"{side}:{axis.place(value)}%"}, text) for value, text in ticks
    ]


def _rule(height: float) -> Markup:
    level = f"{100 - height}%"
    return element("line", {"class": "rule", "x1": "0%", "x2": "100%", "y1": level, "y2": level})


def _curve(curve: Curve, across: Axis, up: Axis) -> Markup:
    places = ((across.place(x), 100 - up.place(y)) for x, y in curve.points)
    points = " ".join(f"{x:.4g},{y:.4g}" for x, y in places)
    told = {"data-tip": curve.tip, "data-key": curve.key} if curve.tip else {}
    return element("polyline", {"class": f"curve {curve.kind}", "points": points, **told})


def _mark(mark: Mark, across: Axis, up: Axis) -> Markup:
    x, y = across.place(mark.x), 100 - up.place(mark.y)
    return element("circle", {"class": f"dot {mark.kind}", "cx": f"{x}%", "cy": f"{y}%", "r": DOT,
                              "data-tip": mark.tip, "data-key": mark.label})  # fmt: skip


def _name(name: Name, width: int) -> Markup:
    box = name.box
    x, y = _share(((box.left + box.right) / 2, box.bottom - 3.5), width)
    return element("text", {"class": "name", "x": x, "y": y, "text-anchor": "middle"}, name.text)


def _leader(start: Spot, end: Spot, width: int) -> Markup:
    (x1, y1), (x2, y2) = _share(start, width), _share(end, width)
    return element("line", {"class": "leader", "x1": x1, "y1": y1, "x2": x2, "y2": y2})


def _share(spot: Spot, width: int) -> tuple[str, str]:
    return f"{100 * spot[0] / width:.2f}%", f"{100 * spot[1] / HEIGHT:.2f}%"
