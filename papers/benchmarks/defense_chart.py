"""The figure of the benchmark of defenses: accuracy against leakage, one labelled mark each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from seepage.report.page._chart import span_axis
from seepage.report.page._chart_names import LabelBox, Spot, boxes_along, place_names
from seepage_papers.picture import Frame, draw_line, draw_name, element, picture, words

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
    frame = Frame(LEFT, TOP, RIGHT, BOTTOM, across, up)
    spots = {name: frame.place(x, sign * y) for name, (x, y) in shown.items()}
    best = [spots[name] for name in front]
    level = round(frame.place(across.low, sign * guess)[1], 1)
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
        *frame.grid(),
        words((LEFT + RIGHT) / 2, HEIGHT - 14, "middle", "accuracy on held-out images, %"),
        # What an attack must pass to have learned anything.
        draw_line((LEFT, level), (RIGHT, level), "#a33", dashes="6 4"),
        words(LEFT + 6, level - 6, "start", "a guess without any update"),
        element("polyline", {"points": _points(best), "fill": "none", "stroke": "#4a7a4f"}),
        *(_dot(spot, name in front) for name, spot in spots.items()),
        *(draw_line(*name.leader, "#9a958a") for name in names if name.apart),
        *map(draw_name, names),
    )


def _dot(spot: Spot, best: bool) -> Markup:
    x, y = (round(value, 1) for value in spot)
    return element("circle", {"cx": x, "cy": y, "r": DOT, "fill": "#2f6b36" if best else "#8a5a2b"})


def _points(spots: Sequence[Spot]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)


def _said(name: str, spot: Spot, metric: str) -> str:
    unit = " dB" if metric == "psnr" else ""
    return f"{name}: {spot[0]:.1f} % at {spot[1]:.3g}{unit}"
