"""Tests that need no reconstruction: membership, attributes, and a promised epsilon."""

from seepage.inference._attributes import AttributeComparison, AttributeGuess, attributes
from seepage.inference._detection import Detection
from seepage.inference._epsilon_audit import (
    EpsilonAudit,
    PrivateSteps,
    audit_epsilon,
    audit_one_run,
)
from seepage.inference._membership import Membership, membership, membership_by_round

__all__ = [
    "AttributeComparison",
    "AttributeGuess",
    "Detection",
    "EpsilonAudit",
    "Membership",
    "PrivateSteps",
    "attributes",
    "audit_epsilon",
    "audit_one_run",
    "membership",
    "membership_by_round",
]
