"""Optimisation attacks: terms, optimisers, schedules, and the engine that brings them together."""

from seepage.attacks.gradient_matching.batchnorm import BatchNormStatistics
from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.attacks.gradient_matching.categories import SoftmaxCategories
from seepage.attacks.gradient_matching.decay import Decaying
from seepage.attacks.gradient_matching.engine import Engine
from seepage.attacks.gradient_matching.features import FeatureMatching
from seepage.attacks.gradient_matching.fidelity import (
    L2,
    Cosine,
    GaussianLikelihood,
    LayerwiseCosine,
)
from seepage.attacks.gradient_matching.generator import Generator
from seepage.attacks.gradient_matching.kernel import GaussianKernel
from seepage.attacks.gradient_matching.langevin import Langevin
from seepage.attacks.gradient_matching.lbfgs import LBFGS
from seepage.attacks.gradient_matching.masked import Masked
from seepage.attacks.gradient_matching.matching import GradientMatching, together
from seepage.attacks.gradient_matching.optimisers import Adam, GradientDescent, Optimiser
from seepage.attacks.gradient_matching.partial import OnLayers
from seepage.attacks.gradient_matching.priors import (
    GroupConsistency,
    Orthogonality,
    SquaredNorm,
    TotalVariation,
)
from seepage.attacks.gradient_matching.schedules import Constant, CosineDecay, StepDecay, WarmUp
from seepage.attacks.gradient_matching.search import Search
from seepage.attacks.gradient_matching.starts import (
    NormalStart,
    PatternedStart,
    UniformStart,
    WarmStart,
    ZeroStart,
)
from seepage.attacks.gradient_matching.term import Term

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
    "GaussianKernel",
    "GaussianLikelihood",
    "Generator",
    "GradientDescent",
    "GradientMatching",
    "GroupConsistency",
    "Langevin",
    "LayerwiseCosine",
    "Masked",
    "NormalStart",
    "OnLayers",
    "Optimiser",
    "Orthogonality",
    "PatternedStart",
    "Search",
    "SoftmaxCategories",
    "SquaredNorm",
    "StepDecay",
    "Term",
    "TotalVariation",
    "UniformStart",
    "WarmStart",
    "WarmUp",
    "ZeroStart",
    "together",
]
