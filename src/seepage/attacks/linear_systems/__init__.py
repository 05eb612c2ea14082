"""Attacks that compute the input instead of searching for it."""

from seepage.attacks.linear_systems.analytic_fc import AnalyticFC

__all__ = ["AnalyticFC"]
