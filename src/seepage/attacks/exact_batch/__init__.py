"""Exact inversion of whole batches through a first layer with ReLU."""

from seepage.attacks.exact_batch._complementarity import Complementarity
from seepage.attacks.exact_batch._exact_batch import ExactBatch, KernelSampling
from seepage.attacks.exact_batch._span_factors import (
    determined_probability,
    sparse_probability,
    success_probability,
)
from seepage.attacks.exact_batch._sparse_directions import SparseDirections

__all__ = [
    "Complementarity",
    "ExactBatch",
    "KernelSampling",
    "SparseDirections",
    "determined_probability",
    "sparse_probability",
    "success_probability",
]
