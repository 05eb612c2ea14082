"""Section: what protection costs: leakage against utility, and the choices worth making."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.audit import Choice, pareto_front
from seepage.report.leak import SATURATED, YARDSTICKS
from seepage.report.page.axis import spanning
from seepage.report.page.line_chart import Curve, Labels, Mark, line_chart
from seepage.report.page.section import Section
from seepage.report.words import decibels

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
    across = spanning([c.utility for c in choices], room=0.1)
    up = spanning([min(c.leakage, SATURATED) for c in choices], room=0.15)
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
        "Further right the model is better, further down less leaks. On the line are the choices "
        "that no other beats in both.",
        line_chart(
            across, up, labels, label="Leakage against utility", curves=[stairs], marks=marks
        ),
    )
