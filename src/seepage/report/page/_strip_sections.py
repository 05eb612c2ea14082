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
    Standing,
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
        """A tick; the first one behind which values are all alike has a plus."""
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
            [_defense_strip(*(setup, labels[setup], group), measure)
             for setup, group in shown.setups.items()],
            measure.axis,
            measure.tick_words,
            label=f"What came back with each defense, in {measure.name}",
        )
        for measure, shown in kinds.items()
        if shown
    ]  # fmt: skip
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
    """Draw the worst-off last, so that nobody covers them."""
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
# The axis of bounds ends here: errors below a ten-thousandth of the range are all alike.
_HIGHEST = 80
_HUES = 7


def bound_section(found: Sequence[Headroom]) -> Section | None:
    """What attacks reached and what bounds allow, network by network; None without bounds."""
    if not found:
        return None
    names = list(short_names(headroom.bound for headroom in found).items())
    speaking = {headroom.bound for headroom in found if headroom.informative}
    heard = {bound: short for bound, short in names if bound in speaking}
    hues = {bound: number for number, bound in enumerate(heard)}
    networks = group_by(found, lambda h: (h.scene.data, h.scene.model, h.scene.mode))
    swatches = [("attack", "attacks"), *((f"hue-{hues[b] % _HUES}", n) for b, n in heard.items())]
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
            macros("strips").assumptions([_list_assumptions(*pair, found) for pair in names]),
        ),
    )


def _draw_network(found: Sequence[Headroom], hues: dict[Component, int]) -> Markup:
    scene = found[0].scene
    title = f"{scene.model} on {scene.data}"
    labels = label_setups(headroom.scene.setup for headroom in found)
    floors = {scene: reached(group) for scene, group in scenes(found).items()}
    # From 0 dB, where the error is the whole range, to what is needed, in tens.
    values = [row.psnr for floor in floors.values() for row in floor]
    values += [person.ceiling for headroom in found for person in headroom.people]
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    axis = Axis(0.0, float(min(_HIGHEST, max(40, 10 * math.ceil(most / 10)))))
    chart = strip_chart(
        [
            _bound_strip(scene.setup, labels[scene.setup], floors[scene], group, hues, axis)
            for scene, group in scenes(found).items()
        ],
        axis,
        lambda tick: f"{tick:g}{'+' if tick == _HIGHEST else ''} dB",
        lambda tick: f"{10 ** (-tick / 20):.2g}",
        label=f"Floors and ceilings of {title}, in dB of PSNR",
    )
    speaking = {headroom.bound for headroom in found if headroom.informative}
    return join_markup(
        macros("parts").heading(title, "network"),
        chart,
        _bound_table(title, found, [bound for bound in hues if bound in speaking], labels),
    )


def _bound_strip(
    setup: Setup,
    name: str,
    floor: Sequence[Result],
    group: Sequence[Headroom],
    hues: dict[Component, int],
    axis: Axis,
) -> Strip:
    """What attacks reached with a defense, and below it a lane for each bound that speaks."""
    speaking = sorted((h for h in group if h.people), key=lambda headroom: hues[headroom.bound])
    height = _ATTACKS + _LANE * len(speaking)
    worst = f"worst-off {decibels(floor[0].psnr)}" if floor else "not attacked"
    said = [worst, *(f"{h.bound} {h.middle.words()}" for h in speaking)]
    shapes = [
        *(draw_line(f"{x}%", f"{x}%", 0, height, "rule") for x in map(axis.place, axis.ticks(6))),
        *(
            shape
            for number, h in enumerate(speaking)
            for shape in _draw_lane(h, hues[h.bound], _ATTACKS + _LANE * number + _LANE // 2, axis)
        ),
        *_draw_floor(floor, axis),
        *(draw_dot(a, axis.place(a.psnr), height=_ATTACKS // 2, radius=5) for a in reversed(floor)),
    ]
    note = f"closest: {closest_words(group)}{'' if speaking else '; no bound speaks'}"
    label = filter_link(name, words=defense_words(setup.defense))
    return Strip(label, note, height, f"{name}: {'; '.join(said)}", shapes)


def _draw_floor(people: Sequence[Result], axis: Axis) -> list[Shape]:
    """What is known to leak of the worst-off person: everything up to the furthest dot."""
    if not people:
        return []
    most = axis.place(max(row.psnr for row in people))
    return [draw_bar("floor", 0, _ATTACKS // 2 - 3, width=f"{most}%", height=6)]


def _draw_lane(headroom: Headroom, hue: int, middle: int, axis: Axis) -> list[Shape]:
    """A tick for every person, and beyond the last what is ruled out for all of them."""
    kind = f"ceiling hue-{hue % _HUES}"
    ticks = [_draw_tick(person, headroom.bound, kind, middle, axis) for person in headroom.people]
    if headroom.silent:  # nothing is ruled out for some people
        return ticks
    last = axis.place(max(person.ceiling for person in headroom.people))
    tip = f"beyond what {headroom.bound} allows anybody's attacker"
    width = f"{round(100 - last, 2)}%"
    beyond = draw_bar(f"{kind} beyond", last, middle - 3, width=width, height=6, tip=tip)
    return [beyond, *ticks]


def _draw_tick(person: Standing, bound: Component, kind: str, middle: int, axis: Axis) -> Shape:
    key = name_person(person.victim)
    tip = f"{key}: {person.words()} by {bound}"
    drawn = draw_bar(kind, axis.place(person.ceiling), middle - 5, width=2, height=10, tip=tip)
    return replace(drawn, attributes={**drawn.attributes, "data-key": key})


def _bound_table(
    title: str, found: Sequence[Headroom], bounds: Sequence[Component], labels: dict[Setup, str]
) -> Markup:
    short = short_names(bounds)
    header = number_columns("closest attack", *(short[b] for b in bounds), words=["defense"])
    rows: list[list[str]] = []
    for scene, group in scenes(found).items():
        by_bound = {headroom.bound: headroom for headroom in group}
        cells = [_bound_cell(by_bound.get(bound)) for bound in bounds]
        rows.append([labels[scene.setup], closest_words(group), *cells])
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
    speaks = any(headroom.informative for headroom in own)
    title = f"What {short} assumes" if speaks else f"{short} says nothing here, and why"
    return title, list(phrases), explain_silence(own)
