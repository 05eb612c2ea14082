"""Nonlinear least squares of few unknowns, by decompositions of the whole derivative."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_TRIES = 12
_GAIN = 1e-6
_EXACT = 1e-22


class Residual(Protocol):
    """Equations in unknowns `(n,)`."""

    def __call__(self, unknowns: Tensor) -> Tensor:
        """What is left of each equation, `(e,)`."""

    def derivative(self, unknowns: Tensor) -> Tensor:
        """Of each equation by each unknown, `(e, n)`."""


def least_squares(residual: Residual, start: Tensor, *, steps: int) -> tuple[Tensor, float]:
    """Levenberg-Marquardt; the unknowns, and the sum of squares they leave.

    One singular value decomposition of the derivative serves every damping that is tried at a
    step. It loses half as many digits as the normal equations do, and people whose gradients
    nearly agree are told apart by the last ones.

    Args:
        residual: The equations.
        start: Of the unknowns, `(n,)`.
        steps: At most.

    References:
        Levenberg, 1944 (levenberg1944method); Marquardt, 1963 (marquardt1963algorithm)
    """
    unknowns, left = start, residual(start)
    value, damping = float(left.square().sum()), 1e-2
    for number in range(steps):
        derivative = residual.derivative(unknowns)
        unit = derivative.norm(dim=0).clamp_min(1e-300)
        u, s, vh = torch.linalg.svd(derivative / unit, full_matrices=False)
        along = u.T @ left
        for _ in range(_TRIES):
            there = unknowns - vh.T @ (s / (s.square() + damping) * along) / unit
            left_there = residual(there)
            after = float(left_there.square().sum())
            if after < value:
                break
            damping *= 5
        else:
            break
        gained = (value - after) / value
        unknowns, left, value = there, left_there, after
        damping = max(damping / 10, 1e-16)
        if value < _EXACT or (gained < _GAIN and number > 10):
            break
    return unknowns, value
