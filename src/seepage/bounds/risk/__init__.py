"""Who is at risk, without attacking anybody."""

from seepage.bounds.risk.catalogue import RISKS
from seepage.bounds.risk.influence import InfluenceFloor, InversionInfluence
from seepage.bounds.risk.norms import GradientNorm, JacobianNorm
from seepage.bounds.risk.protocol import RiskScore

__all__ = [
    "RISKS",
    "GradientNorm",
    "InfluenceFloor",
    "InversionInfluence",
    "JacobianNorm",
    "RiskScore",
]
