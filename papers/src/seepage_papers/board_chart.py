"""The figure of the leaderboard: accuracy against what came back, one labelled mark each."""

from __future__ import annotations

import math
from itertools import pairwise

from markupsafe import Markup

from seepage.audit import Choice, pareto_front
from seepage.audit.results._amount import SATURATED
from seepage.report.page._chart import span_axis
from seepage.report.page._chart_names import LabelBox, Spot, boxes_along, place_names
from seepage_papers.picture import (
    PAPER,
    Attributes,
    Frame,
    draw_line,
    draw_name,
    element,
    picture,
    words,
)
from seepage_papers.standing import Standing, Status
from seepage_papers.standings import Standings

_WIDTH, _HEIGHT = 900, 500
_TOP, _BOTTOM, _LEFT, _RIGHT = 74, 444, 62, 884
_DOT = 4.5
# Full marks are decided; a ring is what the attack was too weak to tell.
_COLOURS = {Status.leaks: "#a33", Status.not_shown: "#2f6b36"}
_UNDECIDED, _FRONT = "#8a6d1f", "#4a7a4f"


def draw_board(found: Standings) -> str:
    """Draw every line that was trained and attacked, as a file of SVG.

    The line joins decided defenses that no other beats in both respects. Right of the dashed one a
    defense costs no more than the points allow.
    """
    lines = [line for line in found.lines if line.accuracy is not None and line.tallies]
    places = {line.label: (100 * (line.accuracy or 0.0), _height(line)) for line in lines}
    across = span_axis([x for x, _ in places.values()], room=0.12)
    up = span_axis([y for _, y in places.values()], room=0.12)
    frame = Frame(_LEFT, _TOP, _RIGHT, _BOTTOM, across, up)
    spots = {name: frame.place(*place) for name, place in places.items()}
    decided = [line.label for line in lines if line.status.decided]
    choices = [Choice(name, places[name][1], places[name][0]) for name in decided]
    front = [spots[choice.label] for choice in pareto_front(choices)]
    ruled = [] if found.free is None else [100 * found.free - found.points]
    limits = [(frame.place(x, up.low), frame.place(x, up.high)) for x in ruled]
    drawn = [*pairwise(front), *limits]
    inside = LabelBox(_LEFT, _TOP, _RIGHT, _BOTTOM)
    names = place_names(spots, inside, dot=_DOT, around=boxes_along(drawn))
    return picture(
        _WIDTH,
        _HEIGHT,
        f"Leaderboard, {found.board.words}",
        "; ".join(_say(line, *places[line.label]) for line in lines),
        words(_LEFT, 24, "start", "Median PSNR in dB: further down, less leaks", bold=True),
        words(_LEFT, 41, "start", "full marks: red, people were identified; green, none was"),
        words(_LEFT, 58, "start", "rings: inconclusive, the attack was too weak to tell"),
        *frame.grid(),
        words((_LEFT + _RIGHT) / 2, _HEIGHT - 14, "middle", "accuracy on held-out data, %"),
        *(draw_line(*limit, "#777", dashes="6 4") for limit in limits),
        *(draw_line(*part, _FRONT) for part in pairwise(front)),
        *(_dot(spots[line.label], line.status) for line in lines),
        *(draw_line(*name.leader, "#9a958a") for name in names if name.apart),
        *map(draw_name, names),
    )


def _height(line: Standing) -> float:
    return min(line.psnr, SATURATED) if math.isfinite(line.psnr) or line.psnr > 0 else 0.0


def _dot(spot: Spot, status: Status) -> Markup:
    x, y = (round(value, 1) for value in spot)
    colour = _COLOURS.get(status, _UNDECIDED)
    fill = colour if status.decided else PAPER
    look: Attributes = {"fill": fill, "stroke": colour, "stroke-width": 1.5, "class": status.name}
    return element("circle", {"cx": x, "cy": y, "r": _DOT, **look})


def _say(line: Standing, accuracy: float, psnr: float) -> str:
    return f"{line.label}: {accuracy:.1f} % at {psnr:.3g} dB, {line.status}"
