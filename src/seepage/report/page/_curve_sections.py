"""Sections with curves: what protection costs, how attacks were chosen, what more steps find."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from seepage.audit._choices import Choice, pareto_front
from seepage.audit._record import Record
from seepage.audit._words import Setup, decibels, defense_words, label_setups, short_names
from seepage.audit.results import Result, Results
from seepage.audit.results._amount import SATURATED, Amount
from seepage.audit.results._effort_curve import GAIN, EffortCurve
from seepage.core._grouping import group_by
from seepage.core._reconstruction import Race, Trial
from seepage.core._scale import DECIBELS
from seepage.report.page._chart import Axis, Curve, Labels, Mark, line_chart, span_axis, span_curves
from seepage.report.page._document import (
    Section,
    amount,
    faint,
    join_markup,
    level_class,
    macros,
    number_columns,
    table,
)
from seepage.report.wording import curve_words

# The most searches in a chart, about the most points of a curve, and the most charts of rehearsals.
_SEARCHES, _POINTS, _RACES = 40, 80, 12
# The objective at the start and after each step; empty if it was not kept.
Objective = Callable[[Result], Sequence[float]]


def tradeoff_section(choices: Sequence[Choice]) -> Section | None:
    """Draw one choice per defense and the Pareto front; None if no utility was measured."""
    if not choices:
        return None
    across = span_axis([c.utility for c in choices], room=0.1)
    up = span_axis([min(c.leakage, SATURATED) for c in choices], room=0.15)
    marks = [
        Mark(
            choice.utility,
            choice.leakage,
            f"{choice.label}: {decibels(choice.leakage)} leaked at utility {choice.utility:g}",
            choice.label,
            "leak" if choice.leakage >= DECIBELS.telling else "safe",
        )
        for choice in choices
    ]
    stairs = Curve([(c.utility, c.leakage) for c in pareto_front(choices)], "", "front", "")
    words = Labels("utility", "worst-off person, dB")
    chart = line_chart(
        across, up, words, label="Leakage against utility", curves=[stairs], marks=marks
    )
    return Section(
        "tradeoff",
        "What protection costs",
        "The model is better further right, and less leaks further down. The line joins the "
        "choices that no other choice beats in both.",
        chart,
    )


@dataclass(frozen=True)
class _Rehearsal:
    """How `auto` chose its attacks in one setup, and whether its forecast was kept.

    Args:
        data: Name of the data set.
        model: The network.
        setup: Defense, local computation and batch size.
        race: The attacks that were tried, and the forecast.
        scores: What the chosen attacks then recovered of people.
    """

    data: str
    model: str
    setup: Setup
    race: Race
    scores: tuple[float, ...]

    @property
    def curves(self) -> dict[str, list[Trial]]:
        """The trials of each attack, by steps; attacks that got more come last."""
        trials = (trial for trial in self.race.trials if trial.scores)
        found = group_by(trials, lambda trial: trial.attack)
        return dict(sorted(found.items(), key=lambda item: max(t.mean for t in item[1])))

    def forecast_words(self) -> str:
        """The forecast, and for how many it was right."""
        forecast = self.race.forecast
        if forecast is None:
            return self.race.note or "-"
        ends = (forecast.low, forecast.middle, forecast.high)
        low, middle, high = (Amount(self.race.metric, end).words(unit=False) for end in ends)
        unit = "" if Amount(self.race.metric, None).is_share else " dB"
        interval = f"{low} or more" if forecast.is_open else f"{low} to {high}"
        kept = sum(map(forecast.covers, self.scores))
        return f"{middle}{unit} ({interval}), right for {kept} of {len(self.scores)}"


def _list_rehearsals(records: Sequence[Record]) -> list[_Rehearsal]:
    """Every race of an audit once, in the order of its cases."""
    raced = (record for record in records if record.race is not None and record.race.trials)
    groups = group_by(raced, lambda r: (r.data, r.model, Setup.of(r), r.race))
    return [
        _Rehearsal(
            data,
            model,
            setup,
            race,
            tuple(v for r in some for v in r.scores.get(race.metric, ()) if v is not None),
        )
        for (data, model, setup, race), some in groups.items()
        if race is not None
    ]


def race_section(records: Sequence[Record]) -> Section | None:
    """How `auto` chose its attacks: who was tried, and how leakage grew with effort; or None."""
    found = _list_rehearsals(records)
    if not found:
        return None
    labels = label_setups(one.setup for one in found)
    rows = [
        [
            one.data,
            one.model,
            labels[one.setup],
            "; ".join(one.race.chosen),
            one.forecast_words(),
            "plateau" if one.race.plateau else "still rising" if one.race.rising else "cannot tell",
        ]
        for one in found
    ]
    words = ("data", "network", "defense", "chosen", "forecast", "more steps")
    drawn = [
        _draw_rehearsal(one, f"{one.model}, {one.data}, {labels[one.setup]}")
        for one in found[:_RACES]
    ]
    return Section(
        "rehearsals",
        "How the attack was chosen",
        "Before it looked at an update, the adversary played the client itself, on inputs that "
        "nobody attacks here, and tried many searches on the updates it had made. Those that "
        "brought most back went on. The forecast is what they promise for one person, with an "
        "interval meant to cover nine in ten over many audits. All people of a line share it, "
        "often from one or two rehearsed people, so it is right for nearly all of them or for "
        "few. The last column says whether more steps still brought more; one round cannot tell.",
        join_markup(
            table("Rehearsals", "Attacks chosen and forecasts", number_columns(words=words), rows),
            *drawn,
        ),
    )


def _draw_rehearsal(one: _Rehearsal, name: str) -> Markup:
    """Draw what came back against the steps, one curve for each attack."""
    parts, race = macros("parts"), one.race
    told = {a: Amount(race.metric, trials[-1].mean).words() for a, trials in one.curves.items()}
    curves = [
        Curve(
            [(math.log10(max(1, trial.steps)), trial.mean) for trial in trials],
            f"{attack}: {told[attack]}",
            "leak" if attack in race.chosen else "none",
            attack,
        )
        for attack, trials in one.curves.items()
        if len(trials) > 1
    ]
    if not curves:
        count = len(race.trials)
        return join_markup(parts.paragraph(f"{name}: one round, {count} attacks tried."))
    steps = sorted({trial.steps for trials in one.curves.values() for trial in trials})
    ticks = [(math.log10(max(1, step)), str(step)) for step in steps if step]
    across, up = span_curves(curves)
    labels = Labels("steps", "came back in rehearsal", ticks)
    label = f"Leakage by steps in the rehearsal for {name}"
    dropped = [
        f"{attack} ({told[attack]})"
        for attack, trials in one.curves.items()
        if len(trials) == 1 and attack not in race.chosen
    ]
    failed = [f"{trial.attack} ({trial.error})" for trial in race.trials if trial.error]
    listed = [("Dropped after the first round", dropped[::-1]), ("Failed", failed)]
    left = " ".join(f"{what}: {', '.join(names)}." for what, names in listed if names)
    return join_markup(
        parts.heading(name),
        line_chart(across, up, labels, label=label, curves=curves),
        parts.paragraph(faint(left)) if left else None,
    )


def effort_section(found: Sequence[EffortCurve]) -> Section | None:
    """Leakage against steps, of attacks that ran with several numbers of steps; None without."""
    if not found:
        return None
    labels = label_setups(curve.setup for curve in found)
    lines = [
        Curve(
            [(math.log2(steps), value) for steps, value in curve.medians],
            f"{labels[curve.setup]}, {curve.model}, {curve.data}: {curve_words(curve)}",
            "leak" if curve.rising else "safe",
            f"{number}",
        )
        for number, curve in enumerate(found)
    ]
    ticks = sorted({steps for curve in found for steps in curve.scores})
    words = Labels(
        "steps", "median over people, dB", [(math.log2(steps), f"{steps:,}") for steps in ticks]
    )
    across, up = span_curves(lines)
    return Section(
        "effort",
        "Would more steps find more?",
        "Each line is one attack on one setup with several numbers of steps. It has reached a "
        f"plateau if the 95 % interval over people of what doubling the steps gains is below "
        f"{GAIN:g} dB. Otherwise nobody gets the level not shown by this attack.",
        join_markup(
            line_chart(across, up, words, label="Leakage against steps", curves=lines),
            macros("parts").list([line.tip for line in lines]),
        ),
    )


def convergence_section(results: Results, *, objective: Objective) -> Section | None:
    """One chart per attack of objective against step; None if no curve was kept."""
    ran = (row for row in results if not row.behind)
    searched = [row for row in ran if row.record.effort.get("steps")]
    short = short_names(row.record.attack for row in searched)
    groups = Results(searched).by("attack")
    charts = [_draw_searches(short[attack], group, objective) for attack, group in groups.items()]
    if not any(charts):
        return None
    return Section(
        "convergence",
        "How the searches converged",
        "The objective of the restart that each attack chose, step by step, on a logarithmic "
        "scale. If a curve still falls at its end, more steps might find more.",
        join_markup(*charts),
    )


def _draw_searches(name: str, group: Results, objective: Objective) -> Markup | None:
    """One curve per case; cases that got more are drawn over the others."""
    cases = {row.number: row for row in sorted(group, key=lambda row: row.strength)}
    shown = sorted(cases.values(), key=lambda row: row.strength)[-_SEARCHES:]
    lines = [c for c in (_draw_objective(a, objective(a)) for a in shown) if len(c.points) > 1]
    if not lines:
        return None
    across = Axis(0.0, max(x for line in lines for x, _ in line.points))
    up = span_curves(lines)[1]
    powers = range(math.ceil(up.low), math.floor(up.high) + 1)
    ticks = [(float(power), f"1e{power}") for power in powers[:: max(1, len(powers) // 5)]]
    labels = Labels("step", "objective", across.labels(), ticks)
    left = faint(f" the {len(shown)} cases that got most, of {len(cases)}")
    return join_markup(
        macros("parts").heading(join_markup(name, left if len(cases) > len(shown) else None)),
        line_chart(across, up, labels, label=f"Objective of {name} by step", curves=lines),
    )


def _draw_objective(row: Result, values: Sequence[float]) -> Curve:
    stride = max(1, len(values) // _POINTS)
    steps = sorted({*range(0, len(values), stride), *range(len(values))[-1:]})
    points = [(step, math.log10(values[step])) for step in steps if 0 < values[step] < math.inf]
    tip = f"{row.name}, {defense_words(row.record.defense)}: {amount(row)}"
    return Curve(points, tip, level_class(row.level), row.name)
