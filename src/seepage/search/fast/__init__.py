"""Simulating the client for many rows at once: in turn, by vmap, or with shared weights."""

from seepage.search.fast._case_simulation import case_simulation, use_known_statistics
from seepage.search.fast._row_simulation import Strategy, row_simulation

__all__ = ["Strategy", "case_simulation", "row_simulation", "use_known_statistics"]
