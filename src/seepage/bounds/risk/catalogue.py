"""Every risk score by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from seepage.bounds.risk.influence import InfluenceFloor, InversionInfluence
from seepage.bounds.risk.norms import GradientNorm, JacobianNorm
from seepage.bounds.risk.protocol import RiskScore

RISKS: Mapping[str, type[RiskScore]] = MappingProxyType(
    {kind.name: kind for kind in (GradientNorm, JacobianNorm, InversionInfluence, InfluenceFloor)}
)
