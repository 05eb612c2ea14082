"""Least squares: nonlinear by Levenberg-Marquardt, linear by conjugate gradients."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_TRIES = 12
_GAIN = 1e-6
_EXACT = 1e-22


class _LinearOperator(Protocol):
    """A matrix that is only known by its products, for many right-hand sides at once."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of equations and unknowns."""

    def apply(self, x: Tensor) -> Tensor:
        """The product with unknowns `(..., n)`."""

    def adjoint(self, y: Tensor) -> Tensor:
        """The product of the transpose with equations `(..., e)`."""


class _Residual(Protocol):
    """Equations in unknowns `(n,)`."""

    def __call__(self, unknowns: Tensor) -> Tensor:
        """The residual of each equation, `(e,)`."""

    def derivative(self, unknowns: Tensor) -> Tensor:
        """The derivative of each equation by each unknown, `(e, n)`."""


def least_squares(residual: _Residual, start: Tensor, *, steps: int) -> tuple[Tensor, float]:
    """Minimise by Levenberg-Marquardt; return the unknowns and their sum of squares.

    One singular value decomposition of the derivative serves all dampings tried at a step. It loses
    half as many digits as the normal equations, and separating examples whose gradients nearly
    agree needs the last digits.

    Args:
        residual: The equations.
        start: The first unknowns, `(n,)`.
        steps: The most steps to take.

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


_LOOK_EVERY = 10


def minimum_norm(
    system: _LinearOperator,
    target: Tensor,
    *,
    damping: float = 0.0,
    tolerance: float = 1e-12,
    iterations: int = 5_000,
) -> Tensor:
    """The x of least norm among those that minimise ||u x - v||^2 + damping^2 ||x||^2.

    Starting from zero, every iterate lies in the row space of u, as does the solution of least
    norm. Several systems are solved side by side.

    Args:
        system: u.
        target: v, `(..., |z| + |w|)`.
        damping: Tikhonov damping, for a noisy v.
        tolerance: Stop when the gradient of the objective has fallen by this factor.
        iterations: The most iterations.

    References:
        Hestenes and Stiefel, 1952, Sec. 10 (hestenes1952methods)
    """
    nothing = target.new_zeros(*target.shape[:-1], system.shape[1])
    state = _begin(system, target, damping, nothing, tolerance)
    for iteration in range(iterations):
        # Rarely, since it waits for the GPU; solved systems do not change any more.
        if iteration % _LOOK_EVERY == 0 and not bool((state.power > state.enough).any()):
            break
        state = _advance(system, state, damping)
    return state.x


def nearest_solution(
    system: _LinearOperator, target: Tensor, x: Tensor, *, iterations: int
) -> Tensor:
    """Move x towards the nearest solution of u x = v, by a fixed number of iterations.

    The part of x outside the row space of u stays. The control flow does not depend on values, so
    it can be captured as a CUDA graph.
    """
    state = _begin(system, target, 0.0, x, torch.finfo(x.dtype).eps)
    for _ in range(iterations):
        state = _advance(system, state, 0.0)
    return state.x


class _State(NamedTuple):
    x: Tensor
    rest: Tensor
    direction: Tensor
    power: Tensor
    enough: Tensor


def _begin(
    system: _LinearOperator, target: Tensor, damping: float, x: Tensor, tolerance: float
) -> _State:
    rest = target - system.apply(x)
    gradient = system.adjoint(rest) - damping**2 * x
    power = _squared_lengths(gradient)
    return _State(x, rest, gradient, power, tolerance**2 * power)


def _advance(system: _LinearOperator, state: _State, damping: float) -> _State:
    image = system.apply(state.direction)
    curvature = _squared_lengths(image) + damping**2 * _squared_lengths(state.direction)
    # A solved system does not move, since the recurrence would only amplify rounding.
    pace = _ratio(state.power, curvature).masked_fill(state.power <= state.enough, 0.0)
    x, rest = state.x + pace * state.direction, state.rest - pace * image
    gradient = system.adjoint(rest) - damping**2 * x
    power = _squared_lengths(gradient)
    direction = gradient + _ratio(power, state.power) * state.direction
    return _State(x, rest, direction, power, state.enough)


def _squared_lengths(vectors: Tensor) -> Tensor:
    """Squared lengths, `(..., 1)`."""
    return vectors.square().sum(-1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return above / below.clamp(min=torch.finfo(below.dtype).tiny)
