"""Bounds from theory: what no attack can do better, and what some attack can do."""

from __future__ import annotations

from collections.abc import Callable

from seepage.bounds import dp, risk
from seepage.bounds.bound import Bound
from seepage.bounds.candidates import CandidateError
from seepage.bounds.cramer_rao import CramerRao, CramerRaoRelaxed, VanTrees
from seepage.bounds.dp import RenyiError
from seepage.bounds.dp_limits import IdentificationLimit, ReconstructionRobustness
from seepage.bounds.identifiability import (
    Determined,
    EquationCount,
    Identifiability,
    RankDeficiency,
)
from seepage.bounds.information import Channel, Information, channel, information
from seepage.bounds.inverse_trace import InverseTrace, Inversion
from seepage.bounds.mutual_information import MutualInformation
from seepage.bounds.two_layer_orders import ErrorOrders, pruned_share, table_1, two_layer_orders
from seepage.core.plugins import Catalogue

_ALL: tuple[type[Bound], ...] = (
    CandidateError,
    CramerRao,
    CramerRaoRelaxed,
    EquationCount,
    Identifiability,
    IdentificationLimit,
    MutualInformation,
    RankDeficiency,
    ReconstructionRobustness,
    RenyiError,
    VanTrees,
)
BOUNDS: Catalogue[Callable[..., Bound]] = Catalogue(
    "bound", "seepage.bounds", {b.__name__: b for b in _ALL}
)

__all__ = [
    "BOUNDS",
    "Bound",
    "CandidateError",
    "Channel",
    "CramerRao",
    "CramerRaoRelaxed",
    "Determined",
    "EquationCount",
    "ErrorOrders",
    "Identifiability",
    "IdentificationLimit",
    "Information",
    "InverseTrace",
    "Inversion",
    "MutualInformation",
    "RankDeficiency",
    "ReconstructionRobustness",
    "RenyiError",
    "VanTrees",
    "channel",
    "dp",
    "information",
    "pruned_share",
    "risk",
    "table_1",
    "two_layer_orders",
]
