"""The space that the rows of a weight gradient span, and what lies outside it."""

from __future__ import annotations

import torch
from torch import Tensor


def row_span(gradient: Tensor, *, tolerance: float, at_most: int | None = None) -> Tensor:
    """Return an orthonormal basis of the row space of a weight gradient, in float64.

    The gradient is dL/dW = sum_i (dL/dy_i) x_i^T, so its rows are spanned by the inputs x_i.

    Args:
        gradient: `(m, d)`.
        tolerance: Singular values below this share of the largest are rounding.
        at_most: How many vectors the layer read, if known; noise has more directions.

    Example:
        >>> read = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
        >>> basis = row_span(torch.ones(4, 2).tril() @ read, tolerance=1e-6)
        >>> len(basis), share_outside(basis, torch.eye(3)).round().tolist()
        (2, [0.0, 0.0, 1.0])
    """
    _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
    kept = int((values > tolerance * values[0]).sum())
    span: Tensor = rows[: kept if at_most is None else min(kept, at_most)]
    return span


def share_outside(basis: Tensor, vectors: Tensor) -> Tensor:
    """Return ||x - x V^T V|| / ||x|| for each vector x of `(..., d)`, V the basis `(r, d)`."""
    wide = vectors.double()
    outside = wide - wide @ basis.T @ basis
    shares: Tensor = outside.norm(dim=-1) / wide.norm(dim=-1)
    return shares
