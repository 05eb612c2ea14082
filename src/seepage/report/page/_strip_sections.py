"""Sections with strips above an axis: leakage by defense, and what theory allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from seepage.audit._words import (
    Setup,
    count_noun,
    decibels,
    defense_words,
    label_setups,
    short_names,
)
from seepage.audit.results import Result, Results
from seepage.audit.results._amount import SATURATED
from seepage.audit.results._intervals import Interval, median_interval
from seepage.audit.results._result import name_person
from seepage.core._construct import Component
from seepage.core._grouping import group_by
from seepage.core._scale import DECIBELS
from seepage.report._headroom import (
    Headroom,
    closest_words,
    error_words,
    explain_silence,
    reached,
    read_headroom,
    scenes,
)
from seepage.report.page._chart import (
    Axis,
    Shape,
    Strip,
    draw_bar,
    draw_dot,
    draw_line,
    strip_chart,
)
from seepage.report.page._document import (
    Section,
    amount,
    faint,
    filter_link,
    join_markup,
    level_class,
    macros,
    number_columns,
    table,
)
from seepage.report.wording import Kind
from seepage.scoring._scores import find_scale


@dataclass(frozen=True)
class _Measure:
    """What strips show: PSNR, or the share of columns or words that came back."""

    axis: Axis
    reference: float
    name: str

    def words(self, value: float, *, unit: bool = True) -> str:
        if self is _DECIBELS:
            return decibels(value, unit=unit)
        return f"{value:.0f} %" if value >= 0 else "-"

    def tick_words(self, tick: float) -> str:
        """A tick; one has a plus if larger values are drawn there."""
        if self is _SHARES:
            return f"{tick:g} %"
        return f"{tick:g}{' dB' if tick == self.reference else '+' if tick == SATURATED else ''}"


_DECIBELS = _Measure(Axis(0.0, SATURATED), DECIBELS.telling, "dB of PSNR")
_SHARES = _Measure(
    Axis(0.0, 100.0),
    100 * find_scale("feature_accuracy").telling,
    "per cent of the columns or words",
)
_HEIGHT = 34
_DOTS = 200
# More dots than this would hide each other: they get smaller and spread about the line.
_FEW, _GOLDEN = 12, 0.618


def defense_section(results: Results) -> Section:
    """Each setup against its strongest attack on each person, then against every attack."""
    labels = label_setups(results.setups)
    kinds = {
        _DECIBELS: Results(row for row in results if not row.is_share),
        _SHARES: Results(row for row in results if row.is_share),
    }
    charts = [
        strip_chart(
            [
                _defense_strip(setup, labels[setup], group, measure)
                for setup, group in shown.setups.items()
            ],
            measure.axis,
            measure.tick_words,
            label=f"What came back with each defense, in {measure.name}",
        )
        for measure, shown in kinds.items()
        if shown
    ]
    begins = [f"{measure.words(measure.reference)}" for measure, shown in kinds.items() if shown]
    return Section(
        "defenses",
        "Leakage by defense and by attack",
        "Each dot is one person: the strongest of all attacks on that person, over the networks, "
        "adversaries and seeds of this audit. The upright bar is the median over people, the "
        f"thick line its 95 % interval (bootstrap over updates). The tint begins at "
        f"{' and at '.join(begins)}{' of the columns or words' * bool(kinds[_SHARES])}. A red dot "
        "is a person who was identified among strangers, whatever the score. Arrow keys walk "
        "along a line.",
        join_markup(*charts, _attack_table(results.setups, labels)),
    )


def _defense_strip(setup: Setup, name: str, results: Results, measure: _Measure) -> Strip:
    """A dot for each person, the median over people and its interval."""
    people = results.strongest()
    total = count_noun(len(people), "person", "people")
    stride = math.ceil(len(people) / _DOTS)
    note = f"{people.identified} of {total} identified"
    interval = _median_over(people)
    words, axis = measure.words, measure.axis
    summary = (
        f"{name}: median {words(interval.middle)}, 95 % interval {words(interval.low)} to "
        f"{words(interval.high)}, worst-off {words(people[0].measured)}"
    )
    threshold, half = axis.place(measure.reference), _HEIGHT // 2
    low, middle, high = map(axis.place, (interval.low, interval.middle, interval.high))
    shapes = [
        draw_bar("warm", threshold, 0, width=f"{100 - threshold}%", height=_HEIGHT),
        draw_line("0%", "100%", half, half, "rule"),
        draw_line(f"{low}%", f"{high}%", half, half, "interval"),
        *_draw_dots(people[::stride], axis, half),
        draw_bar("median", middle, half - 9, width=3, height=18, tip=summary),
    ]
    label = filter_link(name, words=defense_words(setup.defense))
    note += f", one dot for {stride}" if stride > 1 else ""
    return Strip(label, note, _HEIGHT, summary, shapes)


def _draw_dots(people: Sequence[Result], axis: Axis, half: int) -> list[Shape]:
    """Draw the worst-off last, on top of all others."""
    crowded = len(people) > _FEW
    heights = [half + 20 * (number * _GOLDEN % 1 - 0.5) * crowded for number in range(len(people))]
    radius = 3 if crowded else 5
    return [
        draw_dot(row, axis.place(row.measured), height=round(height, 1), radius=radius)
        for row, height in zip(reversed(people), heights, strict=True)
    ]


def _attack_table(groups: Mapping[Setup, Results], labels: dict[Setup, str]) -> Markup:
    """Defenses by attacks; the strongest attack on a defense is set in bold."""
    attacks = list(dict.fromkeys(a.record.attack for group in groups.values() for a in group))
    short = short_names(attacks)
    header = number_columns(*(short[attack] for attack in attacks), words=["defense"])
    rows = []
    for setup, group in groups.items():
        found = {attack: some.strongest() for attack, some in group.by("attack").items() if some}
        most = max(people[0].strength for people in found.values())
        cells: list[str] = [_attack_cell(found.get(attack), most) for attack in attacks]
        rows.append([labels[setup], *cells])
    caption = (
        "The worst-off person and the median (with its 95 % interval), by attack. "
        "Bold: the strongest attack on a defense."
    )
    return table("Leakage by attack", caption, header, rows, kind="matrix")


def _attack_cell(people: Results | None, most: tuple[float, ...]) -> Markup:
    if people is None:
        return faint("not tried")
    worst = people[0]
    told = f"median {median_words(people)}, {people.identified}/{len(people)}"
    strongest = worst.strength == most
    cell: Markup = macros("strips").attack(amount(worst), level_class(worst.level), strongest, told)
    return cell


def _median_over(tried: Iterable[Result]) -> Interval:
    """The median over attempts on different people, without those that have no score."""
    scored = [row for row in tried if row.measured > -math.inf]
    if not scored:
        return Interval(-math.inf, -math.inf, -math.inf)
    return median_interval([a.measured for a in scored], [a.update for a in scored])


def median_words(tried: Iterable[Result]) -> str:
    """The median, then the ends of its interval: in dB, or in per cent of columns or words."""
    tried = list(tried)
    measure = _SHARES if tried and all(row.is_share for row in tried) else _DECIBELS
    found = _median_over(tried)
    ends = (found.middle, found.low, found.high)
    middle, low, high = (measure.words(value, unit=False) for value in ends)
    return f"{middle} ({low} to {high})"


# Height of the lane of attacks, and of the lane of each bound.
_ATTACKS, _LANE = 20, 13
# The axis of bounds ends here, where the error is a ten-thousandth of the range.
_HIGHEST = 80
_HUES = 7


def bound_section(found: Sequence[Headroom]) -> Section | None:
    """What attacks reached and what bounds allow, network by network; None without bounds."""
    if not found:
        return None
    short = short_names(headroom.bound for headroom in found)
    informative = {headroom.bound for headroom in found if headroom.informative}
    shown = [bound for bound in short if bound in informative]
    hues = {bound: f"hue-{number % _HUES}" for number, bound in enumerate(shown)}
    swatches = [("attack", "attacks"), *((hue, short[bound]) for bound, hue in hues.items())]
    networks = group_by(found, lambda h: (h.scene.data, h.scene.model, h.scene.mode))
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
            macros("strips").legend(swatches),
            *(_draw_network(group, hues) for group in networks.values()),
            macros("strips").assumptions([_list_assumptions(*one, found) for one in short.items()]),
        ),
    )


def _draw_network(found: Sequence[Headroom], hues: Mapping[Component, str]) -> Markup:
    title = f"{found[0].scene.model} on {found[0].scene.data}"
    labels = label_setups(headroom.scene.setup for headroom in found)
    setups = {scene.setup: group for scene, group in scenes(found).items()}
    attacked = {setup: reached(group) for setup, group in setups.items()}
    # From 0 dB, where the error is the whole range, to what is needed, in tens.
    values = [row.psnr for people in attacked.values() for row in people]
    values += [person.ceiling for headroom in found for person in headroom.people]
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    axis = Axis(0.0, float(min(_HIGHEST, max(40, 10 * math.ceil(most / 10)))))
    strips = []
    for setup, group in setups.items():
        label = filter_link(labels[setup], words=defense_words(setup.defense))
        strips.append(_bound_strip(label, attacked[setup], group, hues, axis))
    chart = strip_chart(
        strips,
        axis,
        lambda tick: f"{tick:g}{'+' if tick == _HIGHEST else ''} dB",
        lambda tick: f"{10 ** (-tick / 20):.2g}",
        label=f"Floors and ceilings of {title}, in dB of PSNR",
    )
    told = _bound_table(title, setups, hues, labels)
    return join_markup(macros("parts").heading(title, "network"), chart, told)


def _bound_strip(
    label: Markup,
    attacked: Sequence[Result],
    group: Sequence[Headroom],
    hues: Mapping[Component, str],
    axis: Axis,
) -> Strip:
    """What attacks reached with a defense, and below it a lane for each bound on the error."""
    lanes = sorted((h for h in group if h.people), key=lambda h: list(hues).index(h.bound))
    height = _ATTACKS + _LANE * len(lanes)
    worst = f"worst-off {decibels(attacked[0].psnr)}" if attacked else "not attacked"
    said = [worst, *(f"{h.bound} {h.middle.words()}" for h in lanes)]
    shapes = [
        draw_line(f"{x}%", f"{x}%", 0, height, "rule") for x in map(axis.place, axis.ticks(6))
    ]
    for number, headroom in enumerate(lanes):
        middle = _ATTACKS + _LANE * number + _LANE // 2
        shapes += _draw_lane(headroom, hues[headroom.bound], middle, axis)
    if attacked:
        # What is known to leak of the worst-off person: everything up to the furthest dot.
        most = axis.place(max(row.psnr for row in attacked))
        shapes.append(draw_bar("floor", 0, _ATTACKS // 2 - 3, width=f"{most}%", height=6))
    shapes += [
        draw_dot(row, axis.place(row.psnr), height=_ATTACKS // 2, radius=5)
        for row in reversed(attacked)
    ]
    note = f"closest: {closest_words(group)}{'' if lanes else '; no bound speaks'}"
    return Strip(label, note, height, f"{label.striptags()}: {'; '.join(said)}", shapes)


def _draw_lane(headroom: Headroom, hue: str, middle: int, axis: Axis) -> list[Shape]:
    """A tick for every person, and beyond the last what is ruled out for all of them."""
    kind, bound = f"ceiling {hue}", headroom.bound
    ticks = []
    for person in headroom.people:
        key = name_person(person.victim)
        tip, across = f"{key}: {person.words()} by {bound}", axis.place(person.ceiling)
        tick = draw_bar(kind, across, middle - 5, width=2, height=10, tip=tip)
        ticks.append(replace(tick, attributes={**tick.attributes, "data-key": key}))
    if headroom.silent:  # nothing is ruled out for some people
        return ticks
    last = axis.place(max(person.ceiling for person in headroom.people))
    tip, width = f"beyond what {bound} allows anybody's attacker", f"{round(100 - last, 2)}%"
    return [draw_bar(f"{kind} beyond", last, middle - 3, width=width, height=6, tip=tip), *ticks]


def _bound_table(
    title: str,
    setups: Mapping[Setup, Sequence[Headroom]],
    hues: Mapping[Component, str],
    labels: Mapping[Setup, str],
) -> Markup:
    found = {
        headroom.bound for group in setups.values() for headroom in group if headroom.informative
    }
    short = short_names(bound for bound in hues if bound in found)
    rows: list[list[str]] = []
    for setup, group in setups.items():
        by_bound = {headroom.bound: headroom for headroom in group}
        cells = [_bound_cell(by_bound.get(bound)) for bound in short]
        rows.append([labels[setup], closest_words(group), *cells])
    header = number_columns("closest attack", *short.values(), words=["defense"])
    caption = (
        "The person in the middle: the error (RMSE) that attacks have at least, the PSNR they "
        "have at most, and how that stands to what was reached."
    )
    return table(f"Bounds on {title}", caption, header, rows, kind="matrix")


def _bound_cell(headroom: Headroom | None) -> Markup:
    if headroom is None or not headroom.people:
        return faint("not asked" if headroom is None else read_headroom(headroom))
    middle, judged = headroom.middle, headroom.standing
    beaten = judged.kind is Kind.bound_contradicted
    cell: Markup = macros("strips").bound(
        error_words(middle.rmse), decibels(middle.ceiling), str(judged), beaten
    )
    return cell


def _list_assumptions(
    bound: Component, short: str, found: Sequence[Headroom]
) -> tuple[str, list[str], list[str]]:
    """A title, what a bound assumes, and where it says nothing."""
    own = [headroom for headroom in found if headroom.bound == bound]
    phrases = dict.fromkeys(phrase for headroom in own for phrase in headroom.assumptions)
    informative = any(headroom.informative for headroom in own)
    title = f"What {short} assumes" if informative else f"{short} says nothing here, and why"
    return title, list(phrases), explain_silence(own)
