"""A line chart that keeps its letters in shape while it stretches with the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.report.page.axis import Axis
from seepage.report.page.markup import Markup, element, joined


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
        label: Written beside it.
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
    )
    return element(
        "figure",
        {"class": "chart lines", "role": "group", "aria-label": label},
        element("div", {"class": "up-title"}, labels.up),
        element("div", {"class": "ticks-up"}, *_ticks(labels.ticks_up, up, "bottom")),
        plot,
        element("div", {"class": "ticks-across"}, *_ticks(labels.ticks_across, across, "left")),
        element("div", {"class": "across-title"}, labels.across),
    )


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
    at_end = x > 70
    return joined(
        element("circle", {"class": f"dot {mark.kind}", "cx": f"{x}%", "cy": f"{y}%", "r": 6,
                           "data-tip": mark.tip, "data-key": mark.label}),
        element("text", {"x": f"{x}%", "y": f"{y}%", "dy": -10,
                         "text-anchor": "end" if at_end else "start"}, mark.label),
    )  # fmt: skip
