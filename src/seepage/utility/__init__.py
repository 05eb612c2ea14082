"""Training under a defense: what protection costs."""

from seepage.utility.augment import CropAndFlip
from seepage.utility.evaluate import Quality, evaluate
from seepage.utility.federated import Federated
from seepage.utility.plan import Plan
from seepage.utility.promise import noise_multiplier
from seepage.utility.result import Utility
from seepage.utility.schedules import Constant, Drops, OneCycle, Schedule
from seepage.utility.split import Dirichlet
from seepage.utility.train import train
from seepage.utility.training import Training

__all__ = [
    "Constant",
    "CropAndFlip",
    "Dirichlet",
    "Drops",
    "Federated",
    "OneCycle",
    "Plan",
    "Quality",
    "Schedule",
    "Training",
    "Utility",
    "evaluate",
    "noise_multiplier",
    "train",
]
