"""Attacks that compute the input instead of searching for it, and what decides if they can."""

from seepage.attacks.linear_systems.analytic_fc import AnalyticFC, features
from seepage.attacks.linear_systems.hybrid import Hybrid
from seepage.attacks.linear_systems.hybrid_correction import Correction
from seepage.attacks.linear_systems.linear_system import LinearSystem
from seepage.attacks.linear_systems.rgap import RGAP

__all__ = [
    "RGAP",
    "AnalyticFC",
    "Correction",
    "Hybrid",
    "LinearSystem",
    "features",
]
