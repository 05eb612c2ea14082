"""Bounds from theory: what no attack can do better, and what some attack can do."""

from __future__ import annotations

from collections.abc import Callable

from seepage.bounds import dp, risk
from seepage.bounds._bound import Bound
from seepage.bounds._candidates import CandidateError
from seepage.bounds._cramer_rao import CramerRao, CramerRaoRelaxed, VanTrees
from seepage.bounds._dp_limits import IdentificationLimit, ReconstructionRobustness
from seepage.bounds._identifiability import (
    Determined,
    EquationCount,
    Identifiability,
    RankDeficiency,
)
from seepage.bounds._information import Channel, Information, channel, information
from seepage.bounds._inverse_trace import InverseTrace, Inversion
from seepage.bounds._mutual_information import MutualInformation
from seepage.bounds._two_layer_orders import ErrorOrders, pruned_share, table_1, two_layer_orders
from seepage.bounds.dp import RenyiError
from seepage.core._plugins import Catalogue

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
