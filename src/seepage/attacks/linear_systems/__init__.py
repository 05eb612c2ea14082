"""Attacks that compute the input instead of searching for it, and what decides if they can."""

from seepage.attacks.linear_systems.analytic_fc import AnalyticFC
from seepage.attacks.linear_systems.closed_form import features
from seepage.attacks.linear_systems.correction import Correction
from seepage.attacks.linear_systems.hybrid import Hybrid
from seepage.attacks.linear_systems.inspection import Inspection, inspection
from seepage.attacks.linear_systems.operator import LinearSystem
from seepage.attacks.linear_systems.rank_metric import RankMetric, rank_metric
from seepage.attacks.linear_systems.rgap import RGAP
from seepage.attacks.linear_systems.stack import Stack, read_stack

__all__ = [
    "RGAP",
    "AnalyticFC",
    "Correction",
    "Hybrid",
    "Inspection",
    "LinearSystem",
    "RankMetric",
    "Stack",
    "features",
    "inspection",
    "rank_metric",
    "read_stack",
]
