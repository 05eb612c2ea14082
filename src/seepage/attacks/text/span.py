"""The space that a layer's gradient spans: what the layer read lies in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Span:
    """A subspace of what a layer reads.

    Args:
        basis: Orthonormal rows `(r, d)`, in float64.
    """

    basis: Tensor

    @property
    def rank(self) -> int:
        """Its dimension."""
        return len(self.basis)

    def distances(self, vectors: Tensor) -> Tensor:
        """Share of each vector `(..., d)` that lies outside: ||x - x V^T V|| / ||x||."""
        wide = vectors.double()
        outside = wide - wide @ self.basis.T @ self.basis
        shares: Tensor = outside.norm(dim=-1) / wide.norm(dim=-1)
        return shares


def row_span(gradient: Tensor, *, tolerance: float, at_most: int | None = None) -> Span:
    """The row space of a weight gradient dL/dW = sum_i (dL/dy_i) x_i^T, which the x_i span.

    Args:
        gradient: `(m, d)`.
        tolerance: Singular values below this share of the largest are rounding.
        at_most: How many vectors the layer read, where that is known; noise has more directions.

    Example:
        >>> read = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
        >>> span = row_span(torch.ones(4, 2).tril() @ read, tolerance=1e-6)
        >>> span.rank, span.distances(torch.eye(3)).round().tolist()
        (2, [0.0, 0.0, 1.0])
    """
    _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
    kept = int((values > tolerance * values[0]).sum())
    return Span(rows[: kept if at_most is None else min(kept, at_most)])
