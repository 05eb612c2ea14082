"""Every risk score by name."""

from __future__ import annotations

from collections.abc import Callable

from seepage.bounds.risk.influence import InfluenceFloor, InversionInfluence
from seepage.bounds.risk.norms import GradientNorm, JacobianNorm
from seepage.bounds.risk.protocol import RiskScore
from seepage.core.plugins import Catalogue

_ALL = (GradientNorm, JacobianNorm, InversionInfluence, InfluenceFloor)
RISKS: Catalogue[Callable[..., RiskScore]] = Catalogue(
    "risk score", "seepage.risks", {kind.name: kind for kind in _ALL}
)
