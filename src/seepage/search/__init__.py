"""Gradient matching: terms, optimisers, schedules, and the engine that runs them."""

from seepage.numerics.schedules import Constant, CosineDecay, StepDecay, WarmUp
from seepage.search.engine import Engine
from seepage.search.feature_matching import FeatureMatching
from seepage.search.fidelity import L2, Cosine, GaussianLikelihood, LayerwiseCosine
from seepage.search.generator import Generator, SoftmaxCategories
from seepage.search.lbfgs import LBFGS
from seepage.search.matching import GradientMatching, together
from seepage.search.objective import Candidate, Term
from seepage.search.optimisers import Adam, GradientDescent, Langevin, Optimiser
from seepage.search.priors import (
    BatchNormStatistics,
    Decaying,
    GroupConsistency,
    Orthogonality,
    SquaredNorm,
    TotalVariation,
)
from seepage.search.search import NormalStart, Search, UniformStart, WarmStart

__all__ = [
    "L2",
    "LBFGS",
    "Adam",
    "BatchNormStatistics",
    "Candidate",
    "Constant",
    "Cosine",
    "CosineDecay",
    "Decaying",
    "Engine",
    "FeatureMatching",
    "GaussianLikelihood",
    "Generator",
    "GradientDescent",
    "GradientMatching",
    "GroupConsistency",
    "Langevin",
    "LayerwiseCosine",
    "NormalStart",
    "Optimiser",
    "Orthogonality",
    "Search",
    "SoftmaxCategories",
    "SquaredNorm",
    "StepDecay",
    "Term",
    "TotalVariation",
    "UniformStart",
    "WarmStart",
    "WarmUp",
    "together",
]
