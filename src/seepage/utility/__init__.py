"""Utility: how good a network becomes when it is trained with a defense."""

from seepage.defenses._clip import noise_multiplier
from seepage.numerics._schedules import Constant, Drops, OneCycle, Schedule
from seepage.utility._quality import Quality, Utility, evaluate
from seepage.utility._train import train
from seepage.utility._training_plan import CropAndFlip, Dirichlet, Federated, Training, TrainingPlan

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
