"""Charts: axes, dots on strips, and line charts with names beside their marks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from seepage.report.page.document import (
    Attributes,
    Markup,
    element,
    faint,
    level_class,
    make_scrollable,
)

if TYPE_CHECKING:
    from seepage.audit.results import Result


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


def span_axis(values: Iterable[float], *, room: float = 0.05) -> Axis:
    """Make an axis that holds all finite values, with a little room at both ends."""
    finite: Sequence[float] = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    spare = room * (high - low) or 1.0
    return Axis(low - spare, high + spare)


# The label of a strip, a note in small type, and its track.
Strip = tuple[Markup, str, Markup]


def draw_track(height: int, summary: str, *content: str | None) -> Markup:
    """A strip that the keyboard reaches, with its summary for those who do not see it."""
    frame: Attributes = {"class": "track", "height": height, "tabindex": 0, "role": "img"}
    return element("svg", {**frame, "aria-label": summary}, *content)


def draw_line(left: str, right: str, top: int | str, bottom: int | str, kind: str) -> Markup:
    """A straight line of a class of the style sheet."""
    return element("line", {"x1": left, "x2": right, "y1": top, "y2": bottom, "class": kind})


def draw_strips(
    strips: Iterable[Strip], axis: Axis, *ticks: Callable[[float], str], label: str
) -> Markup:
    """Draw strips above one axis; `label` tells screen readers what the chart shows.

    There is a line of text below the axis for each function of a value in `ticks`.
    """
    parts = [((name, faint(note)), track) for name, note, track in strips]
    rows = [
        element("div", {"class": "strip"}, element("div", {"class": "strip-label"}, *words), track)
        for words, track in [*parts, ((), _draw_scale(axis, ticks))]
    ]
    return element("figure", {"class": "chart", "role": "group", "aria-label": label}, *rows)


def _draw_scale(axis: Axis, lines: Sequence[Callable[[float], str]]) -> Markup:
    marks = []
    for tick in axis.ticks(6):
        anchor = {axis.low: "start", axis.high: "end"}.get(tick, "middle")
        for number, write in enumerate(lines):
            place: Attributes = {
                "x": f"{axis.place(tick)}%",
                "y": 14 + 16 * number,
                "text-anchor": anchor,
            }
            marks.append(element("text", place, write(tick)))
    height = 2 + 16 * len(lines)
    return element("svg", {"class": "track scale", "height": height, "aria-hidden": "true"}, *marks)


def draw_dot(result: Result, across: float, *, height: float, radius: int) -> Markup:
    """Draw one person on a strip, at so many per cent of its width."""
    key = "{} #{}".format(*result.victim)
    tip = f"{key}: {result.amount.words()} by {result.record.attack.name} ({result.level})"
    return element(
        "circle",
        {"class": f"dot {level_class(result.level)}", "cx": f"{across}%",
         "cy": height, "r": radius, "data-tip": tip, "data-key": key},
    )  # fmt: skip


# Width of a letter and height of a line, in a font of 12 pixels.
LETTER, LINE = 7.1, 14.0
# A name further than this from its mark is joined to it by a line.
NEXT_TO = 8.0
_RADII = (11, 18, 27, 38, 52, 68, 86, 106, 130, 160)
_ANGLES = [2 * math.pi * i / 24 for i in range(24)]

Spot = tuple[float, float]


@dataclass(frozen=True)
class LabelBox:
    """A rectangle, in the units of the picture."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def about(cls, spot: Spot, reach: float) -> LabelBox:
        """A square with this centre."""
        x, y = spot
        return cls(x - reach, y - reach, x + reach, y + reach)

    def meets(self, other: LabelBox) -> bool:
        """Whether the two overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def nearest(self, spot: Spot) -> Spot:
        """The point of the rectangle that is nearest to a spot."""
        x, y = spot
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def holds(self, inner: LabelBox) -> bool:
        """Whether another rectangle lies inside."""
        across = self.left <= inner.left and inner.right <= self.right
        return across and self.top <= inner.top and inner.bottom <= self.bottom


@dataclass(frozen=True)
class Name:
    """A name in its box, beside a mark of radius `dot`; `closest` if no other mark is closer."""

    text: str
    at: Spot
    box: LabelBox
    dot: float
    closest: bool

    @property
    def leader(self) -> tuple[Spot, Spot]:
        """The line from the edge of the mark to the nearest point of the name."""
        (x, y), near = self.at, self.box.nearest(self.at)
        share = min(self.dot / (math.dist(self.at, near) or 1.0), 1.0)
        return (x + share * (near[0] - x), y + share * (near[1] - y)), near

    @property
    def apart(self) -> bool:
        """Whether a reader could take the name for another mark's; the leader is then drawn."""
        return not self.closest or math.dist(*self.leader) > NEXT_TO

    def crossings(self, *, boxes: Sequence[LabelBox], leaders: Sequence[LabelBox]) -> int:
        """How many boxes the leader crosses, and how many other leaders the name covers."""
        steps = list(boxes_along([self.leader]))
        between = sum(step.meets(box) for step in steps for box in boxes)
        return between + sum(self.box.meets(leader) for leader in leaders)


def place_names(
    marks: Mapping[str, Spot], inside: LabelBox, *, dot: float, around: Iterable[LabelBox] = ()
) -> list[Name]:
    """Place every name near its mark so that no two names or marks overlap.

    Marks have the radius `dot`. Names stay `inside` and do not cover what is `around`. A name with
    no free place near its mark is left out.

    Example:
        >>> marks = {"one": (50.0, 50.0), "two": (50.0, 51.0)}
        >>> a, b = place_names(marks, LabelBox(0, 0, 200, 100), dot=4.0)
        >>> a.box.meets(b.box)
        False
    """
    taken = [LabelBox.about(spot, dot) for spot in marks.values()] + list(around)
    names: list[Name] = []
    leaders: list[LabelBox] = []
    # Crowded marks first, while there is room near them.
    for text in sorted(marks, key=lambda name: _distance_to_next(name, marks)):
        free = [
            Name(text, marks[text], box, dot, _is_closest(marks[text], box, marks.values()))
            for box in _list_boxes(text, *marks[text])
            if inside.holds(box) and not any(box.meets(other) for other in taken)
        ]
        if not free:
            continue
        others = [box for box in taken if not box.meets(LabelBox.about(marks[text], dot))]
        name = min(free, key=partial(Name.crossings, boxes=others, leaders=leaders))
        taken.append(name.box)
        leaders += boxes_along([name.leader])
        names.append(name)
    return names


def _is_closest(at: Spot, box: LabelBox, spots: Iterable[Spot]) -> bool:
    own = math.dist(at, box.nearest(at))
    return all(own <= math.dist(spot, box.nearest(spot)) for spot in spots)


def boxes_along(lines: Iterable[tuple[Spot, Spot]]) -> Iterator[LabelBox]:
    """Cover lines by small squares."""
    for start, end in lines:
        count = max(int(math.dist(start, end) / 4), 1)
        for i in range(count + 1):
            x, y = (a + (b - a) * i / count for a, b in zip(start, end, strict=True))
            yield LabelBox.about((x, y), 2.0)


def _list_boxes(text: str, x: float, y: float) -> Iterator[LabelBox]:
    """Places for a name around its mark, the nearest first."""
    width = LETTER * len(text) + 2
    for radius in _RADII:
        for angle in _ANGLES:
            over, down = math.cos(angle), math.sin(angle)
            mid, level = x + over * (radius + width / 2), y + down * (radius + LINE / 2)
            yield LabelBox(mid - width / 2, level - LINE / 2, mid + width / 2, level + LINE / 2)


def _distance_to_next(name: str, marks: Mapping[str, Spot]) -> float:
    others = (spot for other, spot in marks.items() if other != name)
    return min((math.dist(marks[name], spot) for spot in others), default=0.0)


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
    """Draw curves and marks over two axes; `label` tells screen readers what the chart shows."""
    width, names = _place_names(marks, across, up)
    levels = [f"{100 - up.place(value)}%" for value, _ in labels.ticks_up]
    stretched = element(
        "svg",
        {"viewBox": "0 0 100 100", "preserveAspectRatio": "none", "width": "100%",
         "height": "100%", "overflow": "visible"},
        *(_draw_curve(curve, across, up) for curve in curves),
    )  # fmt: skip
    plot = element(
        "svg",
        {"class": "plot", "tabindex": 0, "role": "img", "aria-label": label},
        *(draw_line("0%", "100%", level, level, "rule") for level in levels),
        stretched,
        *(_draw_mark(mark, across, up) for mark in marks),
        *(_draw_leader(*name.leader, width) for name in names if name.apart),
        *(_draw_name(name, width) for name in names),
    )
    drawn = element(
        "figure",
        {"class": "chart lines", "role": "group", "aria-label": label,
         "style": f"width:calc({width}px + 3rem)" if names else None},
        element("div", {"class": "up-title"}, labels.up),
        element("div", {"class": "ticks-up"}, *_draw_ticks(labels.ticks_up, up, "bottom")),
        plot,
        element("div", {"class": "ticks-across"},
                *_draw_ticks(labels.ticks_across, across, "left")),
        element("div", {"class": "across-title"}, labels.across),
    )  # fmt: skip
    return make_scrollable(label, drawn) if names else drawn


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


def _draw_ticks(ticks: Sequence[tuple[float, str]], axis: Axis, side: str) -> list[Markup]:
    return [
        element("span", {"style": f"{side}:{axis.place(value)}%"}, text) for value, text in ticks
    ]


def _draw_curve(curve: Curve, across: Axis, up: Axis) -> Markup:
    places = ((across.place(x), 100 - up.place(y)) for x, y in curve.points)
    points = " ".join(f"{x:.4g},{y:.4g}" for x, y in places)
    told = {"data-tip": curve.tip, "data-key": curve.key} if curve.tip else {}
    return element("polyline", {"class": f"curve {curve.kind}", "points": points, **told})


def _draw_mark(mark: Mark, across: Axis, up: Axis) -> Markup:
    x, y = across.place(mark.x), 100 - up.place(mark.y)
    return element("circle", {"class": f"dot {mark.kind}", "cx": f"{x}%", "cy": f"{y}%", "r": DOT,
                              "data-tip": mark.tip, "data-key": mark.label})  # fmt: skip


def _draw_name(name: Name, width: int) -> Markup:
    box = name.box
    x, y = _share(((box.left + box.right) / 2, box.bottom - 3.5), width)
    return element("text", {"class": "name", "x": x, "y": y, "text-anchor": "middle"}, name.text)


def _draw_leader(start: Spot, end: Spot, width: int) -> Markup:
    (x1, y1), (x2, y2) = _share(start, width), _share(end, width)
    return draw_line(x1, x2, y1, y2, "leader")


def _share(spot: Spot, width: int) -> tuple[str, str]:
    return f"{100 * spot[0] / width:.2f}%", f"{100 * spot[1] / HEIGHT:.2f}%"
