"""What figures that are files of their own share: their frame, and words in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from seepage.report.page._chart import Axis
from seepage.report.page._chart_names import Name, Spot

Attributes = Mapping[str, str | float | None]

PAPER, INK, GRID = "#fbfaf7", "#2b2b2b", "#e4e1d8"


def element(name: str, attributes: Attributes, *children: str) -> Markup:
    """Write one element; text is escaped, and attributes without a value are left out."""
    given = ((key, value) for key, value in attributes.items() if value is not None)
    written = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in given)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup("").join(children))


def picture(width: int, height: int, title: str, said: str, *parts: Markup) -> Markup:
    """A figure that is a file of its own; title and words are for who cannot see it."""
    return element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "role": "img",
            "aria-labelledby": "t d",
            "font-family": "system-ui, sans-serif",
            "font-size": 12,
        },
        element("title", {"id": "t"}, title),
        element("desc", {"id": "d"}, said),
        element("rect", {"width": width, "height": height, "rx": 8, "fill": PAPER}),
        *parts,
    )


def words(x: float, y: float, anchor: str, text: str, *, bold: bool = False) -> Markup:
    """One line of text."""
    place: Attributes = {"x": round(x, 1), "y": round(y, 1), "text-anchor": anchor, "fill": INK}
    return element("text", {**place, "font-weight": 600 if bold else None}, text)


def draw_line(start: Spot, end: Spot, colour: str, *, dashes: str | None = None) -> Markup:
    """A straight line."""
    (x1, y1), (x2, y2) = ((round(x, 1), round(y, 1)) for x, y in (start, end))
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return element("line", {**ends, "stroke": colour, "stroke-dasharray": dashes})


def draw_name(name: Name) -> Markup:
    """A name, on a halo that keeps lines behind it from crossing the letters."""
    place = (name.box.left + name.box.right) / 2, name.box.bottom - 3.5
    halo: Attributes = {"stroke": PAPER, "stroke-width": 4, "paint-order": "stroke"}
    return element("g", halo, words(*place, "middle", name.text))


@dataclass(frozen=True)
class Frame:
    """The part of a figure in which marks stand, and its axes."""

    left: float
    top: float
    right: float
    bottom: float
    across: Axis
    up: Axis

    def place(self, x: float, y: float) -> Spot:
        """Where a point is drawn."""
        return (
            self.left + (self.right - self.left) * self.across.place(x) / 100,
            self.bottom - (self.bottom - self.top) * self.up.place(y) / 100,
        )

    def grid(self) -> Iterator[Markup]:
        """The lines behind the marks, with numbers, which are never negative."""
        for tick in self.across.ticks(8):
            x, _ = self.place(tick, self.up.low)
            yield draw_line((x, self.top), (x, self.bottom), GRID)
            yield words(x, self.bottom + 17, "middle", f"{tick:g}")
        for tick in self.up.ticks(6):
            _, y = self.place(self.across.low, tick)
            yield draw_line((self.left, y), (self.right, y), GRID)
            yield words(self.left - 7, y + 4, "end", f"{abs(tick):g}")
