"""Gradient matching: terms, optimisers, schedules, and the engine that runs them."""

from seepage.numerics._schedules import Constant, CosineDecay, StepDecay, WarmUp
from seepage.search._engine import Engine
from seepage.search._feature_matching import FeatureMatching
from seepage.search._fidelity import L2, Cosine, GaussianLikelihood, LayerwiseCosine
from seepage.search._generator import Generator, SoftmaxCategories
from seepage.search._lbfgs import LBFGS
from seepage.search._matching import GradientMatching, together
from seepage.search._objective import Candidate, Term
from seepage.search._optimisers import Adam, GradientDescent, Langevin, Optimiser
from seepage.search._priors import (
    BatchNormStatistics,
    Decaying,
    GroupConsistency,
    Orthogonality,
    SquaredNorm,
    TotalVariation,
)
from seepage.search._search import NormalStart, Search, UniformStart, WarmStart

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
