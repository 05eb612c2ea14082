"""Least squares without a matrix, by conjugate gradients on the normal equations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from seepage.attacks.linear_systems.operator import LinearSystem

_LOOK_EVERY = 10


def minimum_norm(
    system: LinearSystem,
    target: Tensor,
    *,
    damping: float = 0.0,
    tolerance: float = 1e-12,
    iterations: int = 5_000,
) -> Tensor:
    """The x of least norm among those that minimise ||u x - v||^2 + damping^2 ||x||^2.

    From zero, every iterate lies in the row space of u, where the solution of least norm is. Of
    several systems, those that are solved wait for the others.

    Args:
        system: u.
        target: v, `(..., |z| + |w|)`.
        damping: Tikhonov's, for a v with noise in it.
        tolerance: Stop when the gradient of the objective has fallen by this factor.
        iterations: Stop after so many.

    References:
        Hestenes and Stiefel, 1952, Sec. 10 (hestenes1952methods)
    """
    nothing = target.new_zeros(*target.shape[:-1], system.shape[1])
    state = _begin(system, target, damping, nothing, tolerance)
    for iteration in range(iterations):
        # Not every time, for a card must be waited for; what is solved stays as it is.
        if iteration % _LOOK_EVERY == 0 and not bool((state.power > state.enough).any()):
            break
        state = _advance(system, state, damping)
    return state.x


def nearest_solution(system: LinearSystem, target: Tensor, x: Tensor, *, iterations: int) -> Tensor:
    """Move x towards the nearest solution of u x = v, by a fixed number of iterations.

    What is added lies in the row space of u, so the part of x that the system does not see stays.

    Args:
        system: u.
        target: v, `(..., |z| + |w|)`.
        x: Where to start, `(..., n)`.
        iterations: How many; nothing on the way depends on values, so it can be captured.
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
    system: LinearSystem, target: Tensor, damping: float, x: Tensor, tolerance: float
) -> _State:
    rest = target - system.apply(x)
    gradient = system.adjoint(rest) - damping**2 * x
    power = _squared(gradient)
    return _State(x, rest, gradient, power, tolerance**2 * power)


def _advance(system: LinearSystem, state: _State, damping: float) -> _State:
    image = system.apply(state.direction)
    curvature = _squared(image) + damping**2 * _squared(state.direction)
    # Beyond rounding the recurrence only amplifies it, so what is solved stays as it is.
    pace = _ratio(state.power, curvature).masked_fill(state.power <= state.enough, 0.0)
    x, rest = state.x + pace * state.direction, state.rest - pace * image
    gradient = system.adjoint(rest) - damping**2 * x
    power = _squared(gradient)
    direction = gradient + _ratio(power, state.power) * state.direction
    return _State(x, rest, direction, power, state.enough)


def _squared(vectors: Tensor) -> Tensor:
    """Their squared lengths, `(..., 1)`."""
    return vectors.square().sum(-1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return above / below.clamp(min=torch.finfo(below.dtype).tiny)
