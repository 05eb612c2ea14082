"""Sections with curves: how searches converged, and what protection costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from seepage.audit.choices import Choice, pareto_front
from seepage.report.leak import SATURATED, YARDSTICKS, Attempt, group_by_attack, strength
from seepage.report.page.document import Markup, Section, amount, element, join_markup, level_class
from seepage.report.page.line_chart import Axis, Curve, Labels, Mark, line_chart, span_axis
from seepage.report.words import decibels, defense_words, short_names

CURVES = 40
POINTS = 80

Objective = Callable[[Attempt], Sequence[float]]


def convergence_section(tried: Sequence[Attempt], *, objective: Objective) -> Section | None:
    """One chart per attack of objective against step, or None where no curve was kept.

    Args:
        tried: Every attempt of the audit.
        objective: The objective at the start and after each step; empty where it was not kept.
    """
    searched = [attempt for attempt in tried if attempt.record.effort.get("steps")]
    short = short_names(attempt.record.attack for attempt in searched)
    groups = group_by_attack(searched)
    charts = [_chart(short[attack], group, objective) for attack, group in groups.items()]
    if not any(charts):
        return None
    return Section(
        "convergence",
        "How the searches converged",
        "The objective of the restart that each attack chose, step by step, on a logarithmic "
        "scale. If a curve still falls at its end, more steps might find more.",
        join_markup(*charts),
    )


def _chart(name: str, group: Sequence[Attempt], objective: Objective) -> Markup | None:
    """One curve per case, drawn over the others the more it got."""
    cases = {attempt.number: attempt for attempt in sorted(group, key=strength)}
    shown = sorted(cases.values(), key=strength)[-CURVES:]
    lines = [c for c in (_curve(a, objective(a)) for a in shown) if len(c.points) > 1]
    if not lines:
        return None
    across = Axis(0.0, max(x for line in lines for x, _ in line.points))
    up = span_axis(y for line in lines for _, y in line.points)
    labels = Labels(
        "step",
        "objective",
        [(tick, f"{tick:g}") for tick in across.ticks()],
        [(float(power), f"1e{power}") for power in _powers(up)],
    )
    left = f" the {len(shown)} cases that got most, of {len(cases)}"
    return join_markup(
        element(
            "h3",
            None,
            name,
            element("span", {"class": "faint"}, left) if len(cases) > len(shown) else None,
        ),
        line_chart(across, up, labels, label=f"Objective of {name} by step", curves=lines),
    )


def _curve(attempt: Attempt, values: Sequence[float]) -> Curve:
    stride = max(1, len(values) // POINTS)
    steps = sorted({*range(0, len(values), stride), *range(len(values))[-1:]})
    points = [(step, math.log10(values[step])) for step in steps if 0 < values[step] < math.inf]
    key = "{} #{}".format(*attempt.victim)
    tip = f"{key}, {defense_words(attempt.record.defense)}: {amount(attempt)}"
    return Curve(points, tip, level_class(attempt.level), key)


def _powers(up: Axis) -> list[int]:
    powers = range(math.ceil(up.low), math.floor(up.high) + 1)
    return list(powers)[:: max(1, len(powers) // 5)]


RECOGNISABLE = YARDSTICKS["psnr"].recognisable


def tradeoff_section(choices: Sequence[Choice], *, utility: str = "utility") -> Section | None:
    """Draw every choice and the front, or None where no utility was measured.

    Args:
        choices: One per defense.
        utility: What utility is, with its unit.
    """
    if not choices:
        return None
    front = pareto_front(choices)
    across = span_axis([c.utility for c in choices], room=0.1)
    up = span_axis([min(c.leakage, SATURATED) for c in choices], room=0.15)
    labels = Labels(
        utility,
        "worst-off person, dB",
        [(tick, f"{tick:g}") for tick in across.ticks()],
        [(tick, f"{tick:g}") for tick in up.ticks()],
    )
    marks = [
        Mark(
            choice.utility,
            choice.leakage,
            f"{choice.label}: {decibels(choice.leakage)} leaked at {utility} {choice.utility:g}",
            choice.label,
            "leak" if choice.leakage >= RECOGNISABLE else "safe",
        )
        for choice in choices
    ]
    stairs = Curve([(c.utility, c.leakage) for c in front], "", "front", "")
    return Section(
        "tradeoff",
        "What protection costs",
        "The model is better further right, and less leaks further down. The line joins the "
        "choices that no other choice beats in both.",
        line_chart(
            across, up, labels, label="Leakage against utility", curves=[stairs], marks=marks
        ),
    )
