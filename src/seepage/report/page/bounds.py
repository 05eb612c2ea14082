"""Section: what theory allows beside what was reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.report.page.markup import scrolling, table
from seepage.report.page.section import Section


@dataclass(frozen=True)
class BoundRow:
    """One bound beside the result it bounds.

    Args:
        defense: Behind which it holds.
        metric: What it bounds, with its unit.
        allowed: What theory allows, as text.
        reached: What an attack reached, as text.
        assumptions: Under which it holds.
    """

    defense: str
    metric: str
    allowed: str
    reached: str
    assumptions: str


def bound_section(rows: Sequence[BoundRow]) -> Section | None:
    """A table of bounds, or None where none was computed."""
    if not rows:
        return None
    header = {"behind": "", "metric": "", "theory allows": "number", "reached": "number",
              "if": ""}  # fmt: skip
    cells = [[r.defense, r.metric, r.allowed, r.reached, r.assumptions] for r in rows]
    return Section(
        "bounds",
        "What theory allows",
        "A bound holds for every attack under its assumptions; what was reached is what these "
        "attacks found.",
        scrolling("Bounds", table("Bounds beside results", header, cells)),
    )
