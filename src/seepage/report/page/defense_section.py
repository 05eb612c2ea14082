"""Section: leakage by defense, and by attack behind each defense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.report.intervals import Interval, median_interval
from seepage.report.leak import (
    SATURATED,
    YARDSTICKS,
    Attempt,
    Victim,
    by_attack,
    by_defense,
    recognisable,
    strength,
    strongest,
)
from seepage.report.page.document import (
    Markup,
    Section,
    amount,
    element,
    joined,
    level_class,
    scrolling,
    table,
)
from seepage.report.page.line_chart import Axis
from seepage.report.page.record_section import filter_link
from seepage.report.words import behind, counted, decibels, short_names

DECIBELS = Axis(0.0, SATURATED)
RECOGNISABLE = YARDSTICKS["psnr"].recognisable
HEIGHT = 34
DOTS = 200
# More dots than this would hide each other: they get smaller and spread about the line.
FEW, GOLDEN = 12, 0.618


@dataclass(frozen=True)
class StripLine:
    """One line of the chart.

    Args:
        label: Shown to its left (above it on a narrow screen); may be a link.
        name: The label as plain text.
        people: The strongest attempt on each person, worst-off first.
        interval: Median over people and its interval.
        note: Said after the label, in small type.
    """

    label: Markup
    name: str
    people: Sequence[Attempt]
    interval: Interval
    note: str


def strip_chart(lines: Sequence[StripLine], *, label: str) -> Markup:
    """Draw the lines above one axis in dB of PSNR.

    Args:
        lines: In the order they are drawn.
        label: What the chart shows, for those who do not see it.
    """
    rows = [
        element(
            "div",
            {"class": "strip"},
            element("div", {"class": "strip-label"}, line.label, _note(line)),
            _track(line),
        )
        for line in lines
    ]
    return element(
        "figure",
        {"class": "chart", "role": "group", "aria-label": label},
        *rows,
        element("div", {"class": "strip"}, element("div", {"class": "strip-label"}), _scale()),
    )


def _note(line: StripLine) -> Markup:
    stride = _stride(line.people)
    drawn = f", one dot for {stride}" if stride > 1 else ""
    return element("span", {"class": "faint"}, line.note + drawn)


def _stride(people: Sequence[Attempt]) -> int:
    """Every how many people, from the worst-off on, a dot is drawn."""
    return math.ceil(len(people) / DOTS)


def _track(line: StripLine) -> Markup:
    middle = line.interval.middle
    summary = (
        f"{line.name}: median {decibels(middle)}, 95 % interval {decibels(line.interval.low)} to "
        f"{decibels(line.interval.high)}, worst-off {decibels(line.people[0].psnr)}"
    )
    low, high = DECIBELS.place(line.interval.low), DECIBELS.place(line.interval.high)
    threshold, half = DECIBELS.place(RECOGNISABLE), HEIGHT // 2
    return element(
        "svg",
        {"class": "track", "height": HEIGHT, "tabindex": 0, "role": "img", "aria-label": summary},
        element("rect", {"class": "warm", "x": f"{threshold}%", "y": 0,
                         "width": f"{100 - threshold}%", "height": HEIGHT}),
        element("line", _across("0%", "100%", half) | {"class": "rule"}),
        element("line", _across(f"{low}%", f"{high}%", half) | {"class": "interval"}),
        *_dots(line.people[:: _stride(line.people)], half),
        element(
            "rect",
            {"class": "median", "x": f"{DECIBELS.place(middle)}%", "y": half - 9, "width": 3,
             "height": 18, "data-tip": summary},
        ),
    )  # fmt: skip


def _across(left: str, right: str, height: int) -> dict[str, str | int]:
    return {"x1": left, "x2": right, "y1": height, "y2": height}


def _dots(people: Sequence[Attempt], half: int) -> list[Markup]:
    """The worst-off last, so that nobody covers them."""
    if len(people) <= FEW:
        return [_dot(attempt, half, 5) for attempt in reversed(people)]
    heights = [half + 20 * (number * GOLDEN % 1 - 0.5) for number in range(len(people))]
    return [_dot(a, round(y, 1), 3) for a, y in zip(reversed(people), heights, strict=True)]


def _dot(attempt: Attempt, height: float, radius: int) -> Markup:
    data, person = attempt.victim
    key = f"{data} #{person}"
    tip = f"{key}: {decibels(attempt.psnr)} by {attempt.record.attack.partition('(')[0]}"
    return element(
        "circle",
        {
            "class": f"dot {level_class(attempt.level)}",
            "cx": f"{DECIBELS.place(attempt.psnr)}%",
            "cy": height,
            "r": radius,
            "data-tip": f"{tip} ({attempt.level})",
            "data-key": key,
        },
    )


def _scale() -> Markup:
    marks = [
        element(
            "text",
            {"x": f"{DECIBELS.place(tick)}%", "y": 14, "text-anchor": _anchor(tick)},
            f"{tick:g}{' dB' if tick == RECOGNISABLE else '+' if tick == DECIBELS.high else ''}",
        )
        for tick in DECIBELS.ticks(6)
    ]
    return element(
        "svg", {"class": "track scale", "height": 18, "aria-hidden": "true"}, joined(*marks)
    )


def _anchor(tick: float) -> str:
    ends = {DECIBELS.low: "start", DECIBELS.high: "end"}
    return ends.get(tick, "middle")


def defense_section(tried: Sequence[Attempt]) -> Section:
    """Each defense against its strongest attack on each person, then against every attack."""
    groups = by_defense(tried)
    chart = strip_chart(
        [_line(name, strongest(group)) for name, group in groups.items()],
        label="What came back behind each defense, in dB of PSNR",
    )
    return Section(
        "defenses",
        "Leakage by defense and by attack",
        "One dot per person: the strongest of all attacks on that person, over every network, "
        "knowledge and seed of this audit. The upright bar is the median over people, the thick "
        "line its 95 % interval (bootstrap over people). The tint begins at 20 dB; a dot is red "
        "where the person is recognisable, also below, if shapes came back under noise (SSIM). "
        "Arrow keys walk along a line.",
        joined(chart, _matrix(groups)),
    )


def _line(defense: str, people: dict[Victim, Attempt]) -> StripLine:
    name = behind(defense)
    return StripLine(
        label=filter_link(name),
        name=name,
        people=list(people.values()),
        interval=median_interval([attempt.psnr for attempt in people.values()]),
        note=f"{recognisable(people)} of {counted(len(people), 'person', 'people')} recognisable",
    )


def _matrix(groups: dict[str, list[Attempt]]) -> Markup:
    """Defenses by attacks; the attack that got most behind a defense is set in bold."""
    attacks = list(dict.fromkeys(a.record.attack for group in groups.values() for a in group))
    short = short_names(attacks)
    header = {"behind": "", **{short[attack]: "number" for attack in attacks}}
    rows = []
    for defense, group in groups.items():
        found = {attack: strongest(some) for attack, some in by_attack(group).items()}
        most = max(strength(next(iter(people.values()))) for people in found.values())
        cells: list[str] = [_cell(found.get(attack), most) for attack in attacks]
        rows.append([behind(defense), *cells])
    caption = (
        "The worst-off person and the median (with its 95 % interval), by attack. "
        "Bold: the attack that got most behind a defense."
    )
    return scrolling("Leakage by attack", table(caption, header, rows, {"class": "matrix"}))


def _cell(people: dict[Victim, Attempt] | None, most: tuple[int, float]) -> Markup:
    if people is None:
        return element("span", {"class": "faint"}, "not tried")
    worst = next(iter(people.values()))
    interval = median_interval([attempt.psnr for attempt in people.values()])
    spread = " to ".join(decibels(v, unit=False) for v in (interval.low, interval.high))
    return joined(
        element(
            "strong" if strength(worst) == most else "span",
            {"class": f"worst {level_class(worst.level)}"},
            amount(worst),
        ),
        element(
            "span",
            {"class": "faint"},
            f"median {decibels(interval.middle, unit=False)} ({spread}), "
            f"{recognisable(people)}/{len(people)}",
        ),
    )
