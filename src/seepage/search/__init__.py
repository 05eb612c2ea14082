"""Gradient matching: terms, optimisers, schedules, engine; and the inversion of feature maps."""

from seepage.numerics._schedules import Constant, CosineDecay, StepDecay, WarmUp
from seepage.search._engine import Engine
from seepage.search._feature_matching import FeatureMatching
from seepage.search._fidelity import L2, Cosine, GaussianLikelihood, LayerwiseCosine
from seepage.search._generator import Generator, SoftmaxCategories
from seepage.search._lbfgs import LBFGS
from seepage.search._map_decoder import Decoder, LearnedDecoder
from seepage.search._map_inversion import KnownMap, invert_maps
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
    "Decoder",
    "Engine",
    "FeatureMatching",
    "GaussianLikelihood",
    "Generator",
    "GradientDescent",
    "GradientMatching",
    "GroupConsistency",
    "KnownMap",
    "Langevin",
    "LayerwiseCosine",
    "LearnedDecoder",
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
    "invert_maps",
    "together",
]
