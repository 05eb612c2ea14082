"""A chart of floors and ceilings: attacks as dots, below them one lane for each bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.report.bound_rows import ceiling_words
from seepage.report.headroom import Headroom, Standing
from seepage.report.leak import Attempt
from seepage.report.page.axis import Axis
from seepage.report.page.levels import level_class
from seepage.report.page.markup import Attributes, Markup, element, joined
from seepage.report.words import decibels

# Height of the lane of attacks, and of each bound's.
ATTACKS, LANE = 20, 13
# Beyond this the axis ends: errors of a ten-thousandth of the range are no matter of degree.
HIGHEST = 80
HUES = 7


@dataclass(frozen=True)
class Pair:
    """One line of the chart: what was reached behind a defense, and what theory allows.

    Args:
        label: Shown to its left.
        name: The label as plain text.
        note: In small type below it.
        floor: The strongest attack on each person, worst-off first.
        ceilings: The bounds that speak, each with the number of its hue.
    """

    label: Markup
    name: str
    note: str
    floor: Sequence[Attempt]
    ceilings: Sequence[tuple[int, Headroom]]


def ceiling_chart(pairs: Sequence[Pair], *, label: str) -> Markup:
    """Draw the lines above one axis, in dB of PSNR and as the error per entry that they mean.

    Args:
        pairs: In the order they are drawn.
        label: What the chart shows, for those who do not see it.
    """
    axis = _axis(pairs)
    rows = [
        element(
            "div",
            {"class": "strip"},
            element(
                "div",
                {"class": "strip-label"},
                pair.label,
                element("span", {"class": "faint"}, pair.note),
            ),
            _track(pair, axis),
        )
        for pair in pairs
    ]
    scale = element("div", {"class": "strip"}, element("div", {"class": "strip-label"}),
                    _scale(axis))  # fmt: skip
    return element("figure", {"class": "chart", "role": "group", "aria-label": label}, *rows, scale)


def legend(names: Sequence[str]) -> Markup:
    """Which hue is which bound."""
    attacks = element("li", None, element("span", {"class": "swatch attack"}), "attacks")
    return element(
        "ul",
        {"class": "legend"},
        attacks,
        *(
            element("li", None, element("span", {"class": f"swatch hue-{i % HUES}"}), name)
            for i, name in enumerate(names)
        ),
    )


def _axis(pairs: Sequence[Pair]) -> Axis:
    """From 0 dB, where the error is the whole range, to what is needed, in tens."""
    values = [attempt.psnr for pair in pairs for attempt in pair.floor] + [
        person.ceiling
        for pair in pairs
        for _, headroom in pair.ceilings
        for person in headroom.people
    ]
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    return Axis(0.0, float(min(HIGHEST, max(40, 10 * math.ceil(most / 10)))))


def _track(pair: Pair, axis: Axis) -> Markup:
    height = ATTACKS + LANE * len(pair.ceilings)
    said = [f"{h.bound} {ceiling_words(h.middle)}" for _, h in pair.ceilings]
    worst = f"worst-off {decibels(pair.floor[0].psnr)}" if pair.floor else "not attacked"
    summary = f"{pair.name}: {'; '.join([worst, *said])}"
    lanes = [
        _lane(headroom, hue, ATTACKS + LANE * number + LANE // 2, axis)
        for number, (hue, headroom) in enumerate(pair.ceilings)
    ]
    return element(
        "svg",
        {"class": "track", "height": height, "tabindex": 0, "role": "img", "aria-label": summary},
        *(_upright(axis.place(tick), height) for tick in axis.ticks(6)),
        *lanes,
        _floor(pair.floor, axis),
        *(_dot(attempt, axis) for attempt in reversed(pair.floor)),
    )


def _floor(people: Sequence[Attempt], axis: Axis) -> Markup | None:
    """What is known to leak of the worst-off person: everything up to the furthest dot."""
    if not people:
        return None
    most = axis.place(max(attempt.psnr for attempt in people))
    return element(
        "rect", {"class": "floor", "x": 0, "y": ATTACKS // 2 - 3, "width": f"{most}%", "height": 6}
    )


def _lane(headroom: Headroom, hue: int, middle: int, axis: Axis) -> Markup:
    """A tick for every person, and beyond the last what is ruled out for all of them."""
    kind = f"ceiling hue-{hue % HUES}"
    ticks = [_tick(person, headroom.bound, kind, middle, axis) for person in headroom.people]
    if headroom.silent:  # of whom nothing is ruled out
        return joined(*ticks)
    last = axis.place(max(person.ceiling for person in headroom.people))
    beyond: Attributes = {"class": f"{kind} beyond", "x": f"{last}%", "y": middle - 3, "height": 6,
              "width": f"{round(100 - last, 2)}%"}  # fmt: skip
    tip = f"beyond what {headroom.bound} allows anybody's attacker"
    return joined(element("rect", {**beyond, "data-tip": tip}), *ticks)


def _tick(person: Standing, bound: str, kind: str, middle: int, axis: Axis) -> Markup:
    key = "{} #{}".format(*person.victim)
    place: Attributes = {
        "x": f"{axis.place(person.ceiling)}%",
        "y": middle - 5,
        "width": 2,
        "height": 10,
    }
    tip = f"{key}: {ceiling_words(person)} by {bound}"
    return element("rect", {"class": kind, **place, "data-tip": tip, "data-key": key})


def _dot(attempt: Attempt, axis: Axis) -> Markup:
    key = "{} #{}".format(*attempt.victim)
    tip = f"{key}: {decibels(attempt.psnr)} by {attempt.record.attack.partition('(')[0]}"
    return element(
        "circle",
        {
            "class": f"dot {level_class(attempt.level)}",
            "cx": f"{axis.place(attempt.psnr)}%",
            "cy": ATTACKS // 2,
            "r": 5,
            "data-tip": f"{tip} ({attempt.level})",
            "data-key": key,
        },
    )


def _upright(place: float, height: int) -> Markup:
    across: Attributes = {"x1": f"{place}%", "x2": f"{place}%", "y1": 0, "y2": height}
    return element("line", {"class": "rule", **across})


def _scale(axis: Axis) -> Markup:
    marks = []
    for tick in axis.ticks(6):
        anchor = {axis.low: "start", axis.high: "end"}.get(tick, "middle")
        more = "+" if tick == HIGHEST else ""
        for height, text in ((14, f"{tick:g}{more} dB"), (30, f"{10 ** (-tick / 20):.2g}")):
            place: Attributes = {"x": f"{axis.place(tick)}%", "y": height, "text-anchor": anchor}
            marks.append(element("text", place, text))
    return element(
        "svg", {"class": "track scale", "height": 34, "aria-hidden": "true"}, joined(*marks)
    )
