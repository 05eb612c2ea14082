"""Error against width on logarithmic axes, with the slope of every line beside the theory's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from seepage_papers.picture import GRID, draw_line, element, picture, words

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 900, 470, 56, 414, 62, 640
COLOURS = ("#8a5a2b", "#2f6b36", "#c08a4e", "#6da574")
THEORY = -0.5
Row = Mapping[str, object]


def lines(rows: Sequence[Row]) -> dict[tuple[int, str], list[tuple[int, float]]]:
    """Widths and errors of every batch size and method."""
    found: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for row in rows:
        key = int(str(row["people"])), str(row["method"])
        found.setdefault(key, []).append((int(str(row["neurons"])), float(str(row["error"]))))
    return {key: sorted(points) for key, points in sorted(found.items())}


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Of log error against log width, by least squares.

    Example:
        >>> round(slope([(64, 1.0), (256, 0.5), (1024, 0.25)]), 6)
        -0.5
    """
    x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    centre = sum(x) / len(x)
    return sum((a - centre) * b for a, b in zip(x, y, strict=True)) / sum(
        (a - centre) ** 2 for a in x
    )


def slopes(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Of every line that has three points or more, in all and at its wide end."""
    return [
        {
            "people": people,
            "method": method,
            "slope": round(slope(points), 3),
            "slope_of_last_three": round(slope(points[-3:]), 3),
            "theory": THEORY,
        }
        for (people, method), points in lines(rows).items()
        if len(points) > 2
    ]


def chart(rows: Sequence[Row], *, inputs: int) -> Markup:
    """Draw every line, and sqrt(d / m).

    Args:
        rows: With "people", "method", "neurons" and "error".
        inputs: The number d of features.
    """
    drawn = lines(rows)
    widths = sorted({width for points in drawn.values() for width, _ in points})
    bound = [(width, math.sqrt(inputs / width)) for width in widths]
    errors = [error for points in (*drawn.values(), bound) for _, error in points]
    place = _Place(widths[0], widths[-1], min(errors), 1.0)
    named = {
        f"{_method(method)}, B = {people}: slope {slope(points):.2f}": points
        for (people, method), points in drawn.items()
    }
    title = "Error of recovered features against the width of the head"
    return picture(
        WIDTH,
        HEIGHT,
        title,
        "; ".join(_said(*item) for item in named.items()),
        words(LEFT, 26, "start", "Part of a feature outside the recovered span", bold=True),
        words(LEFT, 43, "start", "both axes are logarithmic"),
        *_grid(place, widths),
        words((LEFT + RIGHT) / 2, HEIGHT - 14, "middle", "random neurons m"),
        *_curve(place, f"sqrt(d / m): slope {THEORY:.2f}", bound, "#a33", 0, dashed=True),
        *(
            part
            for number, ((name, points), colour) in enumerate(
                zip(named.items(), COLOURS, strict=False), start=1
            )
            for part in _curve(place, name, points, colour, number)
        ),
    )


class _Place:
    """Where a width and an error are drawn."""

    def __init__(self, narrow: float, wide: float, low: float, high: float) -> None:
        """Keep the logarithms of the ends, with some room below."""
        self.x = math.log(narrow), math.log(wide)
        self.y = math.log(low) - 0.1, math.log(high)

    def __call__(self, width: float, error: float) -> tuple[float, float]:
        across = (math.log(width) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log(error) - self.y[0]) / (self.y[1] - self.y[0])
        return round(LEFT + (RIGHT - LEFT) * across, 1), round(BOTTOM - (BOTTOM - TOP) * up, 1)


def _grid(place: _Place, widths: Sequence[int]) -> Iterator[Markup]:
    for width in widths:
        x, _ = place(width, 1.0)
        yield draw_line((x, TOP), (x, BOTTOM), GRID)
        yield words(x, BOTTOM + 17, "middle", f"{width}")
    for error in (0.05, 0.1, 0.2, 0.5, 1.0):
        _, y = place(widths[0], error)
        if y <= BOTTOM:
            yield draw_line((LEFT, y), (RIGHT, y), GRID)
            yield words(LEFT - 7, y + 4, "end", f"{error:g}")


def _curve(
    place: _Place,
    name: str,
    points: Sequence[tuple[int, float]],
    colour: str,
    number: int,
    *,
    dashed: bool = False,
) -> Iterator[Markup]:
    """A line with its dots, and its name in the list on the right."""
    spots = [place(*point) for point in points]
    dashes = {"stroke-dasharray": "6 4"} if dashed else {}
    path = " ".join(f"{x},{y}" for x, y in spots)
    yield element("polyline", {"points": path, "fill": "none", "stroke": colour} | dashes)
    if not dashed:
        yield from (element("circle", {"cx": x, "cy": y, "r": 4, "fill": colour}) for x, y in spots)
    level = TOP + 22 * number + 10
    yield element(
        "line",
        {"x1": RIGHT + 14, "y1": level, "x2": RIGHT + 38, "y2": level, "stroke": colour} | dashes,
    )
    yield words(RIGHT + 44, level + 4, "start", name)


def _method(method: str) -> str:
    return "reduced" if "True" in method else "moments"


def _said(name: str, points: Sequence[tuple[int, float]]) -> str:
    return f"{name}, " + ", ".join(f"{error:.3f} at {width}" for width, error in points)
