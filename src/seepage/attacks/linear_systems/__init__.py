"""Attacks that compute the input in closed form or from linear systems, without a search."""

from seepage.attacks.linear_systems.analytic_fc import AnalyticFC, features
from seepage.attacks.linear_systems.hybrid import Correction, Hybrid
from seepage.attacks.linear_systems.linear_system import LinearSystem
from seepage.attacks.linear_systems.rgap import RGAP

__all__ = ["RGAP", "AnalyticFC", "Correction", "Hybrid", "LinearSystem", "features"]
