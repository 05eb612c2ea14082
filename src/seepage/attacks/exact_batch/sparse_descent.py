"""Sparse vectors of a subspace: descent to where most entries are small, then to exact zeros."""

from __future__ import annotations

import torch
from torch import Tensor

# Entries of this size count half as nonzero, at first and in the end; a random entry has size 1.
_WIDTHS = (1.0, 0.3)
_STEP = 0.75
# Directions nearer than this cosine are the same.
_SAME = 0.98


def whitened(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Rows `(k, B)` as `(k, rank)` of unit covariance, and the map `(B, rank)` that makes them.

    A unit vector c in the new coordinates is the direction map @ c in the old ones.

    Example:
        >>> rows = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0], [0.0, -1.0]])
        >>> white, there = whitened(rows, 2)
        >>> bool((white.T @ white / 4).allclose(torch.eye(2)))
        True
    """
    values, axes = torch.linalg.eigh(rows.T @ rows / len(rows))
    values = values.clamp_min(float(values[-1]) * 1e-12)
    there = axes[:, -rank:] * values[-rank:].rsqrt()
    return rows @ there, there


def descend(white: Tensor, starts: Tensor, *, steps: int) -> Tensor:
    """Go down to directions c `(N, r)` on the sphere that make many entries of d = white c small.

    The smoothed number of nonzero entries is

        sum_j 1 - exp(-d_j^2 / (2 w^2)),

    and the width w shrinks from that of a random direction to where zeros stand out. Large entries
    have no say in it, unlike in sum_j d_j^4, whose maxima are single loud neurons.

    Args:
        white: Whitened rows `(k, r)`.
        starts: `(N, r)`, of any length.
        steps: Of gradient descent.
    """
    c = unit(starts)
    first, last = _WIDTHS
    for step in range(steps):
        width = first * (last / first) ** (step / max(1, steps - 1))
        d = c @ white.T
        slope = (d * torch.exp(-0.5 * (d / width).square())) @ white / len(white)
        slope = slope - (slope * c).sum(1, keepdim=True) * c
        c = unit(c - _STEP / width * slope)
    return c


def trimmed(rows: Tensor, directions: Tensor, *, silent: float, steps: int) -> Tensor:
    """Least trimmed squares: the direction that lets least through the quietest entries, anew.

    Once the quietest share of the entries holds none but zeros the direction is exact.

    Args:
        rows: `(k, r)`.
        directions: Approximate, `(N, r)`.
        silent: The share of entries that is taken for zero.
        steps: How often the quietest are chosen anew.
    """
    count = max(rows.shape[1], int(silent * len(rows)))
    for _ in range(steps):
        quietest = (directions @ rows.T).abs().topk(count, dim=1, largest=False).indices
        directions = torch.stack([_quietest(rows[chosen]) for chosen in quietest])
    return directions


def distinct(directions: Tensor, known: Tensor) -> Tensor:
    """The unit directions `(n, r)` that are neither of the known ones `(k, r)` nor repeated.

    Example:
        >>> found = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.6, -0.8]])
        >>> distinct(found, torch.tensor([[1.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    seen = (directions @ unit(known).T).abs().gt(_SAME).any(1)
    alike = (directions @ directions.T).abs() > _SAME
    kept: list[int] = []
    for number in range(len(directions)):
        if not seen[number]:
            kept.append(number)
            seen = seen | alike[number]
    return directions[kept]


def unit(vectors: Tensor) -> Tensor:
    """Each row divided by its length; a row of zeros stays one."""
    return torch.nan_to_num(vectors / vectors.norm(dim=1, keepdim=True))


def _quietest(rows: Tensor) -> Tensor:
    """The unit vector that rows map to the least, whose largest entry is positive.

    Which of the two signs an eigenvector comes with is chance, and runs are to repeat.
    """
    vector: Tensor = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
    return vector * vector[vector.abs().argmax()].sign()
