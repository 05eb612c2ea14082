"""The figure of the benchmark of defenses: accuracy against leakage, one labelled mark each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from seepage.report.page.document import Markup, element
from seepage.report.page.line_chart import (
    Axis,
    LabelBox,
    Name,
    Spot,
    boxes_along,
    place_names,
    span_axis,
)
from seepage_papers.picture import picture, words

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 900, 470, 56, 414, 62, 884
DOT = 4.0

RANKED = "on the line: choices that no other beats in both respects"
UNRANKED = "nothing is ranked, since without a defense no more leaks than a guess knows"


def chart(
    rows: Mapping[str, Mapping[str, float]], *, metric: str, guess: float, front: Sequence[str]
) -> Markup:
    """Draw the table's rows.

    Args:
        rows: By name, with "accuracy" and the mean of the metric.
        metric: "psnr" or "lpips"; less of the first, more of the second protects.
        guess: The metric's mean for a guess that needs no update.
        front: Rows that no other beats in both respects; none if nothing is ranked.
    """
    key, sign = f"{metric}_mean", 1.0 if metric == "psnr" else -1.0
    shown = {name: (row["accuracy"] * 100, row[key]) for name, row in rows.items()}
    across = span_axis([x for x, _ in shown.values()], room=0.12)
    up = span_axis([sign * y for y in (guess, *(y for _, y in shown.values()))], room=0.12)
    spots = {name: (_across(across, x), _up(up, sign * y)) for name, (x, y) in shown.items()}
    best = [spots[name] for name in front]
    level = round(_up(up, sign * guess), 1)
    inside = LabelBox(LEFT, TOP, RIGHT, BOTTOM)
    lines = [*pairwise(best), ((LEFT, level), (RIGHT, level))]
    guessed = LabelBox(LEFT + 4, level - 18.0, LEFT + 180, level - 2.0)  # names the guess's line
    names = place_names(spots, inside, dot=DOT, around=[guessed, *boxes_along(lines)])
    if len(names) < len(spots):
        left = ", ".join(spots.keys() - {name.text for name in names})
        raise ValueError(f"no room for the names of {left}; make the picture larger")
    what = {"psnr": "mean PSNR, dB", "lpips": "mean LPIPS"}[metric]
    title = "Accuracy against what the strongest attack recovers"
    return picture(
        WIDTH,
        HEIGHT,
        f"{title}: {what}",
        "; ".join(_said(n, shown[n], metric) for n in shown),
        words(LEFT, 26, "start", f"{what}: further down, less leaks", bold=True),
        words(LEFT, 43, "start", RANKED if front else UNRANKED),
        *_grid(across, up),
        words((LEFT + RIGHT) / 2, HEIGHT - 14, "middle", "accuracy on held-out images, %"),
        *_guess(level),
        element("polyline", {"points": _points(best), "fill": "none", "stroke": "#4a7a4f"}),
        *(_dot(spot, name in front) for name, spot in spots.items()),
        *(_line(*name.leader, "#9a958a") for name in names if name.apart),
        *(_name(name) for name in names),
    )


def _across(axis: Axis, value: float) -> float:
    return LEFT + (RIGHT - LEFT) * axis.place(value) / 100


def _up(axis: Axis, value: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * axis.place(value) / 100


def _guess(level: float) -> Iterator[Markup]:
    """The line that an attack must pass to have learned anything."""
    yield element(
        "line",
        {"x1": LEFT, "y1": level, "x2": RIGHT, "y2": level}
        | {"stroke": "#a33", "stroke-dasharray": "6 4"},
    )
    yield words(LEFT + 6, level - 6, "start", "a guess without any update")


def _grid(across: Axis, up: Axis) -> Iterator[Markup]:
    for tick in across.ticks(8):
        x = round(_across(across, tick), 1)
        yield _line((x, TOP), (x, BOTTOM), "#e4e1d8")
        yield words(x, BOTTOM + 17, "middle", f"{tick:g}")
    for tick in up.ticks(6):
        y = round(_up(up, tick), 1)
        yield _line((LEFT, y), (RIGHT, y), "#e4e1d8")
        yield words(LEFT - 7, y + 4, "end", f"{abs(tick):g}")


def _name(name: Name) -> Markup:
    """The name, on a halo that keeps lines behind it from crossing the letters."""
    box = name.box
    place = (box.left + box.right) / 2, box.bottom - 3.5
    halo = {"stroke": "#fbfaf7", "stroke-width": 4, "paint-order": "stroke"}
    return element("g", halo, words(*place, "middle", name.text))


def _dot(spot: Spot, best: bool) -> Markup:
    x, y = (round(value, 1) for value in spot)
    return element("circle", {"cx": x, "cy": y, "r": DOT, "fill": "#2f6b36" if best else "#8a5a2b"})


def _line(start: Spot, end: Spot, colour: str) -> Markup:
    (x1, y1), (x2, y2) = ((round(x, 1), round(y, 1)) for x, y in (start, end))
    return element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": colour})


def _points(spots: Sequence[Spot]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)


def _said(name: str, spot: Spot, metric: str) -> str:
    unit = " dB" if metric == "psnr" else ""
    return f"{name}: {spot[0]:.1f} % at {spot[1]:.3g}{unit}"
