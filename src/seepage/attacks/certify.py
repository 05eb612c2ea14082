"""Checking a guess against the update, which needs no truth."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core import Observation
from seepage.core.precision import precision


def residual(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """Relative difference between the update simulated at a guess and the observed one.

    ||g(x, y) - g*|| / ||g*||
    """
    with torch.no_grad(), precision("float32"):
        simulated = observation.simulate(inputs, labels).flat()
    observed = observation.update.flat()
    return float((simulated - observed).norm() / observed.norm())
