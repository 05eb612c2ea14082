"""What an update tells of people without a reconstruction: membership, and if epsilon holds."""

from seepage.inference.detection import Detection
from seepage.inference.epsilon_audit import EpsilonAudit, PrivateSteps, audit_epsilon
from seepage.inference.membership import Membership, membership

__all__ = [
    "Detection",
    "EpsilonAudit",
    "Membership",
    "PrivateSteps",
    "audit_epsilon",
    "membership",
]
