"""The space that the rows of a weight gradient span, and what lies outside it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

# Singular values below this share of the largest are lost in the rounding of single precision.
_LOST = 1e-8
# A drop between two singular values by this factor ends what is no rounding.
_DROP = 10.0


def row_span(gradient: Tensor, *, tolerance: float) -> Tensor:
    """Return an orthonormal basis of the row space of a weight gradient, in float64.

    The gradient is dL/dW = sum_i (dL/dy_i) x_i^T, so its rows are spanned by the inputs x_i.

    Args:
        gradient: `(m, d)`.
        tolerance: Singular values below this share of the largest are rounding.

    Example:
        >>> read = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
        >>> basis = row_span(torch.ones(4, 2).tril() @ read, tolerance=1e-6)
        >>> len(basis), share_outside(basis, torch.eye(3)).round().tolist()
        (2, [0.0, 0.0, 1.0])
    """
    _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
    span: Tensor = rows[: int((values > tolerance * values[0]).sum())]
    return span


def split_span(
    gradient: Tensor, *, tolerance: float, most: int | None = None
) -> tuple[Tensor, float]:
    """Part what spans the rows of a gradient from its rounding, at a drop of singular values.

    Vectors that are nearly dependent, such as many tokens of a trained network, have singular
    values below any fixed tolerance. Rounding is told from them by the widest drop after it.

    Args:
        gradient: `(m, d)`.
        tolerance: Singular values above this share of the largest are no rounding.
        most: How many vectors there are, if known. Without such a drop so many directions are kept:
            a direction too many costs less than one that is lost.

    Returns:
        An orthonormal basis `(r, d)` in float64, and the first singular value that was left out as
        a share of the last one kept. It bounds the angle by which rounding turned the span (Wedin);
        1 if none was left out.

    Example:
        >>> read = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-7, 0.0]], dtype=torch.float64)
        >>> basis, turned = split_span(torch.ones(3, 2).tril().double() @ read, tolerance=1e-6)
        >>> len(basis), turned < 1e-6
        (2, True)
    """
    _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
    kept = int((values > tolerance * values[0]).sum())
    last = max(kept, int((values > _LOST * values[0]).sum()))
    drops = [
        float(values[k - 1] / values[k].clamp_min(1e-300))
        for k in range(kept, last + 1)
        if k < len(values)
    ]
    if drops and max(drops) > _DROP:
        kept += drops.index(max(drops))
    elif most is not None and kept < most <= last:
        kept = most
    turned = float(values[kept] / values[kept - 1]) if kept < len(values) else 1.0
    return rows[:kept], turned


def share_outside(basis: Tensor, vectors: Tensor) -> Tensor:
    """Return ||x - x V^T V|| / ||x|| for each vector x of `(..., d)`, V the basis `(r, d)`.

    In the precision of the basis.
    """
    wide = vectors.to(basis)
    outside = wide - wide @ basis.T @ basis
    shares: Tensor = outside.norm(dim=-1) / wide.norm(dim=-1)
    return shares


def principal_directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues of R^T R that may differ from zero, ascending, with their unit eigenvectors.

    They are those of R R^T if that is smaller, and only then is it small whatever the width is.

    Args:
        rows: R, `(m, d)`.

    Returns:
        `(k,)` and the columns of `(d, k)`, with k = min(m, d). Vectors of eigenvalues that are
        rounding are rounding themselves.

    Example:
        >>> values, vectors = principal_directions(torch.tensor([[0.0, 3.0, 4.0]]))
        >>> values, vectors.T
        (tensor([25.]), tensor([[0.0000, 0.6000, 0.8000]]))
    """
    if len(rows) >= rows.shape[1]:
        values, vectors = torch.linalg.eigh(rows.T @ rows)
    else:
        values, left = torch.linalg.eigh(rows @ rows.T)
        vectors = normalize(rows.T @ left, dim=0)
    return values, vectors


# Products that turn one row into the direction of all rows, where noise hides it.
_POWERS = 8


def main_direction(rows: Tensor) -> Tensor:
    """The unit vector v `(n,)` of the u v^T nearest to rows `(m, n)`, up to its sign.

    Example:
        >>> main_direction(torch.tensor([[3.0, 4.0], [-6.0, -8.0]])).abs()
        tensor([0.6000, 0.8000])
    """
    scaled = (rows / rows.abs().max()).double()
    along = scaled[scaled.norm(dim=1).argmax()]
    for _ in range(_POWERS):
        along = normalize(scaled.T @ (scaled @ along), dim=0)
    return along.to(rows.dtype)
