"""Attacks on updates of several local steps, wrapped around attacks that search."""

from seepage.attacks.local_steps.epochs import EpochAgnostic, EpochInvariance
from seepage.attacks.local_steps.surrogate import SurrogateModel

__all__ = ["EpochAgnostic", "EpochInvariance", "SurrogateModel"]
