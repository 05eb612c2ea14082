"""Minimum-norm least squares without a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.linear_systems.operator import LinearSystem


@dataclass(frozen=True, eq=False)
class Solution:
    """A least-squares solution.

    Args:
        x: `(n,)`.
        residual: ||u x - v|| / ||v||.
        iterations: How many it took.
    """

    x: Tensor
    residual: float
    iterations: int


def minimum_norm(
    system: LinearSystem,
    v: Tensor,
    *,
    damping: float = 0.0,
    tolerance: float = 1e-13,
    iterations: int = 5_000,
) -> Solution:
    """The x of least norm among those that minimise ||u x - v||^2 + damping^2 ||x||^2.

    Conjugate gradients on the normal equations, from zero: every iterate lies in the row space of
    u, which is where the solution of least norm is.

    Args:
        system: u.
        v: `(|z| + |w|,)`.
        damping: Tikhonov's: for a v with noise in it.
        tolerance: Stop when the gradient of the objective has fallen by this factor.
        iterations: Stop after so many.

    References:
        Hestenes and Stiefel, 1952 (hestenes1952methods); Golub and Van Loan, 2013, Sec. 11.3
    """
    x = v.new_zeros(system.shape[1])
    rest = v.clone()
    gradient = system.adjoint(rest)
    direction = gradient.clone()
    power = first = gradient.square().sum()
    taken = 0
    while taken < iterations and power > tolerance**2 * first:
        image = system.apply(direction)
        curvature = image.square().sum() + damping**2 * direction.square().sum()
        step = power / curvature
        x = x + step * direction
        rest = rest - step * image
        gradient = system.adjoint(rest) - damping**2 * x
        before, power = power, gradient.square().sum()
        direction = gradient + power / before * direction
        taken += 1
    scale = torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    return Solution(x, float(torch.linalg.vector_norm(system.apply(x) - v) / scale), taken)
