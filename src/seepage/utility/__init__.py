"""Training under a defense: what protection costs."""

from seepage.utility.federated import Dirichlet, Federated
from seepage.utility.quality import Quality, Utility, evaluate
from seepage.utility.train import noise_multiplier, train
from seepage.utility.training import Training
from seepage.utility.training_plan import (
    Constant,
    CropAndFlip,
    Drops,
    OneCycle,
    Schedule,
    TrainingPlan,
)

__all__ = [
    "Constant",
    "CropAndFlip",
    "Dirichlet",
    "Drops",
    "Federated",
    "OneCycle",
    "Quality",
    "Schedule",
    "Training",
    "TrainingPlan",
    "Utility",
    "evaluate",
    "noise_multiplier",
    "train",
]
