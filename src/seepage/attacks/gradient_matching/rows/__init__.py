"""Simulating the client for many rows at once: in turn, by vmap, or with shared weights."""

from seepage.attacks.gradient_matching.rows.by_case import case_simulation
from seepage.attacks.gradient_matching.rows.choice import Strategy, row_simulation
from seepage.attacks.gradient_matching.rows.given import given_statistics
from seepage.attacks.gradient_matching.rows.rounded import Rounded, rounded

__all__ = [
    "Rounded",
    "Strategy",
    "case_simulation",
    "given_statistics",
    "rounded",
    "row_simulation",
]
