"""Optimisation attacks: terms, optimisers, schedules, and the loop that brings them together."""

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.attacks.gradient_matching.fidelity import Cosine
from seepage.attacks.gradient_matching.matching import GradientMatching
from seepage.attacks.gradient_matching.optimisers import Adam
from seepage.attacks.gradient_matching.priors import TotalVariation
from seepage.attacks.gradient_matching.schedules import StepDecay

__all__ = ["Adam", "Candidate", "Cosine", "GradientMatching", "StepDecay", "TotalVariation"]
