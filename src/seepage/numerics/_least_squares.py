"""Least squares: nonlinear by Levenberg-Marquardt, linear by conjugate gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_TRIES = 12
_GAIN = 1e-6
_EXACT = 1e-22
# Entries of a block up to which a banded matrix is inverted, and the smallest pivot beside the
# largest that is no rounding.
_BLOCK, _PIVOT = 1_024, 1e-6

Linear = Callable[[Tensor], Tensor]


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
_MOST_ITERATIONS = 5_000


def minimum_norm(
    system: _LinearOperator,
    target: Tensor,
    *,
    damping: float = 0.0,
    tolerance: float = 1e-12,
    precondition: Linear | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """The x of least norm among those that minimise ||u x - v||^2 + damping^2 ||x||^2.

    Starting from zero, every iterate lies in the row space of u, as does the solution of least
    norm. Several systems are solved side by side.

    Args:
        system: u.
        target: v, `(..., |z| + |w|)`.
        damping: Tikhonov damping, for a noisy v.
        tolerance: Stop when the gradient of the objective has fallen by this factor.
        precondition: Multiplies by a matrix near the inverse of u^T u, for fewer iterations; only
            where u x = v has one solution.
        start: Where to begin, likewise.

    References:
        Hestenes and Stiefel, 1952, Sec. 10 (hestenes1952methods)
    """
    inverse = precondition or _keep
    nothing = target.new_zeros(*target.shape[:-1], system.shape[1])
    state = _begin(system, target, damping, nothing, tolerance, inverse)
    if start is not None:
        nearer = _begin(system, target, damping, start, tolerance, inverse)
        state = nearer._replace(enough=state.enough)
    for iteration in range(_MOST_ITERATIONS):
        # Rarely, since it waits for the GPU; solved systems do not change any more.
        if iteration % _LOOK_EVERY == 0 and not bool((state.power > state.enough).any()):
            break
        state = _advance(system, state, damping, inverse)
    return state.x


def nearest_solution(
    system: _LinearOperator, target: Tensor, x: Tensor, *, iterations: int
) -> Tensor:
    """Move x towards the nearest solution of u x = v, by a fixed number of iterations.

    The part of x outside the row space of u stays. The control flow does not depend on values, so
    it can be captured as a CUDA graph.
    """
    state = _begin(system, target, 0.0, x, torch.finfo(x.dtype).eps, _keep)
    for _ in range(iterations):
        state = _advance(system, state, 0.0, _keep)
    return state.x


class _State(NamedTuple):
    x: Tensor
    rest: Tensor
    direction: Tensor
    power: Tensor
    enough: Tensor


def _begin(
    system: _LinearOperator,
    target: Tensor,
    damping: float,
    x: Tensor,
    tolerance: float,
    inverse: Linear,
) -> _State:
    rest = target - system.apply(x)
    gradient = system.adjoint(rest) - damping**2 * x
    direction = inverse(gradient)
    power = _dot(gradient, direction)
    return _State(x, rest, direction, power, tolerance**2 * power)


def _advance(system: _LinearOperator, state: _State, damping: float, inverse: Linear) -> _State:
    image = system.apply(state.direction)
    curvature = _dot(image, image) + damping**2 * _dot(state.direction, state.direction)
    # A solved system does not move, since the recurrence would only amplify rounding.
    pace = _ratio(state.power, curvature).masked_fill(state.power <= state.enough, 0.0)
    x, rest = state.x + pace * state.direction, state.rest - pace * image
    gradient = system.adjoint(rest) - damping**2 * x
    steepest = inverse(gradient)
    power = _dot(gradient, steepest)
    direction = steepest + _ratio(power, state.power) * state.direction
    return _State(x, rest, direction, power, state.enough)


def _keep(vectors: Tensor) -> Tensor:
    return vectors


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Inner products, `(..., 1)`."""
    return (one * other).sum(-1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return above / below.clamp(min=torch.finfo(below.dtype).tiny)


def invert_banded(
    product: Linear, shape: Sequence[int], reach: Sequence[int], *, like: Tensor
) -> Linear | None:
    """Invert a positive definite matrix whose entries link near positions of a grid only.

    All columns are read from few products, since columns that are far apart do not overlap. Rows of
    the grid, taken together as far as they reach, make the matrix block tridiagonal, and the
    Cholesky factor has no other blocks either.

    Args:
        product: The matrix times every row of `(k, n)`.
        shape: The grid `(C, H)` or `(C, H, W)`, whose entries are the unknowns.
        reach: How many positions apart linked entries are at most, along each axis but the first.
        like: A tensor of the precision and on the device of the products.

    Returns:
        The product with the inverse; None if the matrix is singular to rounding, or its blocks are
        so large that it takes long.

    Example:
        >>> matrix = torch.diag(torch.tensor([2.0, 4.0, 8.0]))
        >>> inverse = invert_banded(lambda rows: rows @ matrix, (1, 3), (1,), like=matrix)
        >>> inverse(torch.ones(1, 3))
        tensor([[0.5000, 0.2500, 0.1250]])

    References:
        Curtis, Powell and Reid, 1974 (curtis1974estimation), for reading columns together
    """
    channels, height, width = (*shape, 1)[:3]
    down, across = (*reach, 0)[:2]
    thick = max(1, min(down, height))
    count, size = math.ceil(height / thick), thick * width * channels
    if size > _BLOCK:
        return None
    axes = (torch.arange(n, device=like.device) for n in (channels, height, width))
    channel, row, column = torch.cartesian_prod(*axes).T
    # Columns of the matrix that are read together have one colour.
    tall, wide = min(height, 2 * down + 1), min(width, 2 * across + 1)
    colour = (channel * tall + row % tall) * wide + column % wide
    probes = like.new_zeros(channels * tall * wide, len(row))
    probes[colour, torch.arange(len(row), device=like.device)] = 1.0
    images = product(probes)
    # Each entry's place is its block and its place there.
    place = row // thick * size + (row % thick * width + column) * channels + channel
    diagonal = torch.eye(size, dtype=like.dtype, device=like.device).repeat(count, 1, 1)
    below = torch.zeros_like(diagonal)
    for blocks, apart in ((diagonal, 0), (below, 1)):
        for block in range(count - apart):
            (left,) = (row // thick == block + apart).nonzero(as_tuple=True)
            (right,) = (row // thick == block).nonzero(as_tuple=True)
            linked = (row[left, None] - row[right]).abs() <= down
            linked &= (column[left, None] - column[right]).abs() <= across
            values = images[colour[right], left[:, None]] * linked
            blocks[block][(place[left] % size)[:, None], place[right] % size] = values
    factors, beside = [], []
    for block in range(count):
        factor, failed = torch.linalg.cholesky_ex(diagonal[block])
        if bool(failed):
            return None
        factors.append(factor)
        if block + 1 < count:
            beside.append(torch.linalg.solve_triangular(factor, below[block].T, upper=False))
            diagonal[block + 1] -= beside[-1].T @ beside[-1]
    pivots = torch.stack([factor.diagonal() for factor in factors]).flatten()[place]
    if not bool(pivots.min() > _PIVOT * pivots.max()):
        return None
    return _BandedInverse(place, tuple(factors), tuple(beside))


@dataclass(frozen=True, eq=False)
class _BandedInverse:
    """Multiply by the inverse of L L^T, where L has these blocks on and below its diagonal.

    Args:
        place: Where each unknown stands among the rows of L, `(n,)`.
        factors: The lower triangular blocks on the diagonal.
        beside: The transposed blocks below it.
    """

    place: Tensor
    factors: tuple[Tensor, ...]
    beside: tuple[Tensor, ...]

    def __call__(self, rows: Tensor) -> Tensor:
        count, size = len(self.factors), len(self.factors[0])
        ordered = rows.new_zeros(rows.shape[:-1].numel(), count * size)
        ordered[:, self.place] = rows.reshape(len(ordered), -1)
        parts = list(torch.split(ordered.T, size))
        for block, factor in enumerate(self.factors):
            if block:
                parts[block] = parts[block] - self.beside[block - 1].T @ parts[block - 1]
            parts[block] = torch.linalg.solve_triangular(factor, parts[block], upper=False)
        for block in reversed(range(count)):
            if block + 1 < count:
                parts[block] = parts[block] - self.beside[block] @ parts[block + 1]
            parts[block] = torch.linalg.solve_triangular(
                self.factors[block].T, parts[block], upper=True
            )
        return torch.cat(parts)[self.place].T.reshape(rows.shape)
