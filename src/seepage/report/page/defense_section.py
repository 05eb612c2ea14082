"""Section: leakage by defense, and by attack for each defense."""

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
    count_recognisable,
    group_by_attack,
    group_by_setup,
    strength,
    strongest,
)
from seepage.report.page.document import (
    Markup,
    Section,
    amount,
    element,
    filter_link,
    join_markup,
    level_class,
    make_scrollable,
    table,
)
from seepage.report.page.line_chart import Axis, draw_dot, draw_strips
from seepage.report.words import (
    Setup,
    count_noun,
    decibels,
    defense_words,
    label_setups,
    short_names,
)

DECIBELS = Axis(0.0, SATURATED)
RECOGNISABLE = YARDSTICKS["psnr"].recognisable
HEIGHT = 34
DOTS = 200
# More dots than this would hide each other: they get smaller and spread about the line.
FEW, GOLDEN = 12, 0.618


@dataclass(frozen=True)
class _StripLine:
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


def _strip_chart(lines: Sequence[_StripLine], *, label: str) -> Markup:
    """Draw the lines above one axis in dB of PSNR.

    Args:
        lines: In the order they are drawn.
        label: What the chart shows, for those who do not see it.
    """
    strips = [(line.label, _note(line), _track(line)) for line in lines]
    return draw_strips(strips, scale=_scale(), label=label)


def _note(line: _StripLine) -> str:
    stride = _stride(line.people)
    return line.note + (f", one dot for {stride}" if stride > 1 else "")


def _stride(people: Sequence[Attempt]) -> int:
    """Every how many people, from the worst-off on, a dot is drawn."""
    return math.ceil(len(people) / DOTS)


def _track(line: _StripLine) -> Markup:
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
    count, crowded = len(people), len(people) > FEW
    heights = [half + 20 * (number * GOLDEN % 1 - 0.5) * crowded for number in range(count)]
    return [
        draw_dot(attempt, DECIBELS, height=round(height, 1), radius=3 if crowded else 5)
        for attempt, height in zip(reversed(people), heights, strict=True)
    ]


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
        "svg", {"class": "track scale", "height": 18, "aria-hidden": "true"}, join_markup(*marks)
    )


def _anchor(tick: float) -> str:
    ends = {DECIBELS.low: "start", DECIBELS.high: "end"}
    return ends.get(tick, "middle")


def defense_section(tried: Sequence[Attempt]) -> Section:
    """Each setup against its strongest attack on each person, then against every attack."""
    groups = group_by_setup(tried)
    labels = label_setups(groups)
    chart = _strip_chart(
        [_line(setup, labels[setup], strongest(group)) for setup, group in groups.items()],
        label="What came back with each defense, in dB of PSNR",
    )
    return Section(
        "defenses",
        "Leakage by defense and by attack",
        "Each dot is one person: the strongest of all attacks on that person, over the networks, "
        "adversaries and seeds of this audit. The upright bar is the median over people, the "
        "thick line its 95 % interval (bootstrap over people). The tint begins at 20 dB. A red dot "
        "is a person who is recognisable; below 20 dB this means that shapes came back under "
        "noise (SSIM). Arrow keys walk along a line.",
        join_markup(chart, _matrix(groups, labels)),
    )


def _line(setup: Setup, name: str, people: dict[Victim, Attempt]) -> _StripLine:
    total = count_noun(len(people), "person", "people")
    return _StripLine(
        label=filter_link(name, words=defense_words(setup.defense)),
        name=name,
        people=list(people.values()),
        interval=median_interval([attempt.psnr for attempt in people.values()]),
        note=f"{count_recognisable(people)} of {total} recognisable",
    )


def _matrix(groups: dict[Setup, list[Attempt]], labels: dict[Setup, str]) -> Markup:
    """Defenses by attacks; the strongest attack on a defense is set in bold."""
    attacks = list(dict.fromkeys(a.record.attack for group in groups.values() for a in group))
    short = short_names(attacks)
    header = {"defense": "", **{short[attack]: "number" for attack in attacks}}
    rows = []
    for setup, group in groups.items():
        found = {attack: strongest(some) for attack, some in group_by_attack(group).items()}
        most = max(strength(next(iter(people.values()))) for people in found.values())
        cells: list[str] = [_cell(found.get(attack), most) for attack in attacks]
        rows.append([labels[setup], *cells])
    caption = (
        "The worst-off person and the median (with its 95 % interval), by attack. "
        "Bold: the strongest attack on a defense."
    )
    return make_scrollable("Leakage by attack", table(caption, header, rows, {"class": "matrix"}))


def _cell(people: dict[Victim, Attempt] | None, most: tuple[int, float]) -> Markup:
    if people is None:
        return element("span", {"class": "faint"}, "not tried")
    worst = next(iter(people.values()))
    interval = median_interval([attempt.psnr for attempt in people.values()])
    bold = "strong" if strength(worst) == most else "span"
    told = f"median {interval_words(interval)}, {count_recognisable(people)}/{len(people)}"
    return join_markup(
        element(bold, {"class": f"worst {level_class(worst.level)}"}, amount(worst)),
        element("span", {"class": "faint"}, told),
    )


def interval_words(interval: Interval) -> str:
    """The middle of an interval, then its ends, in dB."""
    low, middle, high = (
        decibels(value, unit=False) for value in (interval.low, interval.middle, interval.high)
    )
    return f"{middle} ({low} to {high})"
