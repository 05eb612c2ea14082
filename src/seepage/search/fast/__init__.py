"""Simulating the client for many rows at once: in turn, by vmap, or with shared weights."""

from seepage.search.fast.case_simulation import Rounded, case_simulation, known_statistics, rounded
from seepage.search.fast.row_simulation import Strategy, row_simulation

__all__ = [
    "Rounded",
    "Strategy",
    "case_simulation",
    "known_statistics",
    "rounded",
    "row_simulation",
]
