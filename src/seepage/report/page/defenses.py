"""Section: leakage by defense, and by attack behind each defense."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.report.intervals import median_interval
from seepage.report.leak import (
    Attempt,
    Victim,
    by_attack,
    by_defense,
    recognisable,
    strength,
    strongest,
)
from seepage.report.page.levels import amount, level_class
from seepage.report.page.markup import Markup, element, joined, scrolling, table
from seepage.report.page.records import filter_link
from seepage.report.page.section import Section
from seepage.report.page.strip_chart import Line, strip_chart
from seepage.report.words import behind, counted, decibels, short_names


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


def _line(defense: str, people: dict[Victim, Attempt]) -> Line:
    name = behind(defense)
    return Line(
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
