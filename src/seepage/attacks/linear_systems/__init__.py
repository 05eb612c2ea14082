"""Attacks that compute the input in closed form or from linear systems, without a search."""

from seepage.attacks.linear_systems._analytic_fc import AnalyticFC, features

__all__ = ["AnalyticFC", "features"]
