"""Whole batches, inverted exactly through a first layer with ReLU."""

from seepage.attacks.exact_batch.attack import ExactBatch
from seepage.attacks.exact_batch.complementarity import Complementarity
from seepage.attacks.exact_batch.kernel_sampling import KernelSampling
from seepage.attacks.exact_batch.odds import determined_probability, success_probability

__all__ = [
    "Complementarity",
    "ExactBatch",
    "KernelSampling",
    "determined_probability",
    "success_probability",
]
