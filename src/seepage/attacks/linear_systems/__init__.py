"""Attacks that compute the input instead of searching for it, or before they do."""

from seepage.attacks.linear_systems.analytic_fc import AnalyticFC
from seepage.attacks.linear_systems.closed_form import features
from seepage.attacks.linear_systems.correction import Correction
from seepage.attacks.linear_systems.hybrid import Hybrid
from seepage.attacks.linear_systems.operator import LinearSystem
from seepage.attacks.linear_systems.rgap import RGAP
from seepage.attacks.linear_systems.stack import Stack, read_stack

__all__ = [
    "RGAP",
    "AnalyticFC",
    "Correction",
    "Hybrid",
    "LinearSystem",
    "Stack",
    "features",
    "read_stack",
]
