"""Section: what theory allows beside what was reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.core.construct import Component
from seepage.report.headroom import (
    Headroom,
    Standing,
    ceiling_words,
    closest_words,
    error_words,
    reached,
    read_headroom,
    scenes,
    silences,
)
from seepage.report.leak import Attempt
from seepage.report.page.document import (
    Attributes,
    Markup,
    Section,
    element,
    filter_link,
    join_markup,
    make_scrollable,
    table,
)
from seepage.report.page.line_chart import Axis, draw_dot, draw_strips
from seepage.report.words import Setup, decibels, defense_words, label_setups, short_names

# Height of the lane of attacks, and of each bound's.
ATTACKS, LANE = 20, 13
# Beyond this the axis ends: errors of a ten-thousandth of the range are no matter of degree.
HIGHEST = 80
HUES = 7


@dataclass(frozen=True)
class Pair:
    """One line of the chart: what attacks reached with a defense, and what theory allows.

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


def _ceiling_chart(pairs: Sequence[Pair], *, label: str) -> Markup:
    """Draw the lines above one axis, in dB of PSNR and as the error per entry that they mean.

    Args:
        pairs: In the order they are drawn.
        label: What the chart shows, for those who do not see it.
    """
    axis = _axis(pairs)
    strips = [(pair.label, pair.note, _track(pair, axis)) for pair in pairs]
    return draw_strips(strips, scale=_scale(axis), label=label)


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
        *(draw_dot(a, axis, height=ATTACKS // 2, radius=5) for a in reversed(pair.floor)),
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
        return join_markup(*ticks)
    last = axis.place(max(person.ceiling for person in headroom.people))
    beyond: Attributes = {"class": f"{kind} beyond", "x": f"{last}%", "y": middle - 3, "height": 6,
              "width": f"{round(100 - last, 2)}%"}  # fmt: skip
    tip = f"beyond what {headroom.bound} allows anybody's attacker"
    return join_markup(element("rect", {**beyond, "data-tip": tip}), *ticks)


def _tick(person: Standing, bound: Component, kind: str, middle: int, axis: Axis) -> Markup:
    key = "{} #{}".format(*person.victim)
    place: Attributes = {
        "x": f"{axis.place(person.ceiling)}%",
        "y": middle - 5,
        "width": 2,
        "height": 10,
    }
    tip = f"{key}: {ceiling_words(person)} by {bound}"
    return element("rect", {"class": kind, **place, "data-tip": tip, "data-key": key})


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
        "svg", {"class": "track scale", "height": 34, "aria-hidden": "true"}, join_markup(*marks)
    )


def bound_section(found: Sequence[Headroom]) -> Section | None:
    """Floors and ceilings, network by network, or None where no bound was computed."""
    if not found:
        return None
    names = list(short_names(headroom.bound for headroom in found).items())
    speaking = {headroom.bound for headroom in found if headroom.speaks}
    heard = {bound: short for bound, short in names if bound in speaking}
    hues = {bound: number for number, bound in enumerate(heard)}
    return Section(
        "bounds",
        "What theory allows",
        "An attack shows how much leaks at least. A bound shows what no attack that it covers can "
        "exceed. Dots are the strongest attack on each person. Each lane below has a tick where "
        "theory stops the attack on that person, and is tinted beyond the last tick. What lies "
        "between dot and tick is unknown. Most bounds are for unbiased attacks: an attack that "
        "prefers likely inputs may pass them, and so may a guess without any update if the bound "
        "is wide. The axis shows PSNR, and below it the error per entry (RMSE, in units of the "
        "range).",
        join_markup(
            legend(list(heard.values())),
            *(_network(group, hues) for group in _by_network(found)),
            element(
                "div", {"class": "assumptions"}, *(_assumptions(*pair, found) for pair in names)
            ),
        ),
    )


def _by_network(found: Sequence[Headroom]) -> list[list[Headroom]]:
    groups: dict[tuple[str, ...], list[Headroom]] = {}
    for headroom in found:
        scene = headroom.scene
        groups.setdefault((scene.data, scene.model, scene.mode), []).append(headroom)
    return list(groups.values())


def _network(found: Sequence[Headroom], hues: dict[Component, int]) -> Markup:
    scene = found[0].scene
    title = f"{scene.model} on {scene.data}"
    labels = label_setups(headroom.scene.setup for headroom in found)
    pairs = [_pair(s.setup, labels[s.setup], group, hues) for s, group in scenes(found).items()]
    return join_markup(
        element("h3", {"class": "network"}, title),
        _ceiling_chart(pairs, label=f"Floors and ceilings of {title}, in dB of PSNR"),
        _table(title, found, [bound for bound in hues if _speaks(bound, found)], labels),
    )


def _speaks(bound: Component, found: Sequence[Headroom]) -> bool:
    return any(headroom.speaks for headroom in found if headroom.bound == bound)


def _pair(setup: Setup, name: str, group: Sequence[Headroom], hues: dict[Component, int]) -> Pair:
    people = list(reached(group).values())
    speaking = sorted(((hues[h.bound], h) for h in group if h.speaks), key=lambda lane: lane[0])
    return Pair(
        label=filter_link(name, words=defense_words(setup.defense)),
        name=name,
        note=f"closest: {closest_words(group)}{'' if speaking else '; no bound speaks'}",
        floor=people,
        ceilings=speaking,
    )


def _table(
    title: str, found: Sequence[Headroom], bounds: Sequence[Component], labels: dict[Setup, str]
) -> Markup:
    short = short_names(bounds)
    header = {"defense": "", "closest attack": "number", **{short[b]: "number" for b in bounds}}
    rows: list[list[str]] = []
    for scene, group in scenes(found).items():
        by_bound = {headroom.bound: headroom for headroom in group}
        cells = [_cell(by_bound.get(bound)) for bound in bounds]
        rows.append([labels[scene.setup], closest_words(group), *cells])
    caption = (
        "The person in the middle: the error (RMSE) that attacks have at least, the PSNR they "
        "have at most, and how that stands to what was reached."
    )
    return make_scrollable(f"Bounds on {title}", table(caption, header, rows, {"class": "matrix"}))


def _cell(headroom: Headroom | None) -> Markup:
    if headroom is None:
        return element("span", {"class": "faint"}, "not asked")
    if not headroom.speaks:
        return element("span", {"class": "faint"}, "says nothing")
    middle, said = headroom.middle, read_headroom(headroom)
    beaten = said.startswith("BEATEN")
    return join_markup(
        element("span", {"class": "worst"}, f"{error_words(middle.rmse)}"),
        element("span", None, decibels(middle.ceiling)),
        element("span", {"class": "leak" if beaten else "faint wrap"}, said),
    )


def _assumptions(bound: Component, short: str, found: Sequence[Headroom]) -> Markup:
    """The assumptions of a bound, and where it says nothing; folded until clicked."""
    own = [headroom for headroom in found if headroom.bound == bound]
    phrases = dict.fromkeys(phrase for headroom in own for phrase in headroom.assumptions)
    lines = [
        *(element("li", None, f"{phrase}.") for phrase in phrases),
        *(element("li", {"class": "faint"}, sentence) for sentence in silences(own)),
    ]
    speaks = _speaks(bound, own)
    title = f"What {short} assumes" if speaks else f"{short} says nothing here, and why"
    return element(
        "details",
        None,
        element("summary", None, title),
        element("ul", None, *lines) if lines else element("p", None, "Nothing."),
    )
