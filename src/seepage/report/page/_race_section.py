"""The section on rehearsals: who was tried, how leakage grew with effort, and who was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from seepage.audit._record import Record
from seepage.audit._words import label_setups
from seepage.audit.results import Level
from seepage.audit.results._amount import Amount
from seepage.report._races import RaceSummary, summarise_races
from seepage.report.page._chart import Axis, Curve, Labels, line_chart, span_axis
from seepage.report.page._document import (
    Section,
    faint,
    join_markup,
    level_class,
    macros,
    number_columns,
    table,
)

# Races that are drawn at most; the table has them all.
_DRAWN = 12


def race_section(records: Sequence[Record]) -> Section | None:
    """Draw every race; None if no attack rehearsed."""
    found = summarise_races(records)
    if not found:
        return None
    labels = label_setups(one.setup for one in found)
    names = {id(one): f"{one.model}, {one.data}, {labels[one.setup]}" for one in found}
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
            *(_draw(one, names[id(one)]) for one in found[:_DRAWN]),
        ),
    )


def _draw(one: RaceSummary, name: str) -> Markup:
    """Draw what came back against the steps, one curve for each attack."""
    curves = [
        Curve(
            [(math.log10(max(1, trial.steps)), trial.mean) for trial in trials],
            f"{attack}: {Amount(one.race.metric, trials[-1].mean).words()}",
            level_class(Level.recognisable if attack in one.race.chosen else None),
            attack,
        )
        for attack, trials in one.curves.items()
        if len(trials) > 1
    ]
    if not curves:
        return _paragraph(f"{name}: one round, {len(one.race.trials)} attacks tried.")
    points = [point for curve in curves for point in curve.points]
    steps = sorted({trial.steps for trials in one.curves.values() for trial in trials})
    across = span_axis((x for x, _ in points), room=0.08)
    up: Axis = span_axis(y for _, y in points)
    labels = Labels(
        "steps",
        "came back in rehearsal",
        [(math.log10(max(1, step)), str(step)) for step in steps if step],
    )
    label = f"Leakage by steps in the rehearsal for {name}"
    return join_markup(
        macros("parts").heading(name),
        line_chart(across, up, labels, label=label, curves=curves),
        _list_dropped(one),
    )


def _list_dropped(one: RaceSummary) -> Markup | None:
    """Name the attacks that the first round dropped, and those that failed."""
    dropped = [
        f"{attack} ({Amount(one.race.metric, trials[0].mean).words()})"
        for attack, trials in one.curves.items()
        if len(trials) == 1 and attack not in one.race.chosen
    ]
    failed = [f"{trial.attack} ({trial.error})" for trial in one.race.trials if trial.error]
    listed = [("Dropped after the first round", dropped[::-1]), ("Failed", failed)]
    words = [f"{what}: {', '.join(names)}." for what, names in listed if names]
    return _paragraph(faint(" ".join(words))) if words else None


def _paragraph(text: str) -> Markup:
    made: Markup = macros("parts").paragraph(text)
    return made
