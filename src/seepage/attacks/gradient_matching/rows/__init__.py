"""Simulating the client for many rows at once: in turn, by vmap, or with shared weights."""

from seepage.attacks.gradient_matching.rows.choice import Strategy, row_simulation

__all__ = ["Strategy", "row_simulation"]
