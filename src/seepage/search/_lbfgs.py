"""L-BFGS for many rows at once, each with its own memory and step length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from seepage.core.errors import require_at_least, require_positive
from seepage.search._optimisers import Moment, State

# As in torch.optim.LBFGS: a smaller product may be all rounding.
_LEAST_CURVATURE = 1e-10


class _Curvature(NamedTuple):
    """The pairs of every row, after unused slots of zeros; the oldest first.

    Args:
        displacements: S, `(R, m, D)`.
        changes: Y, `(R, m, D)`.
        products: The upper triangle of S Y^T, `(R, m, m)`; the identity at unused slots.
        scale: (y . s) / (y . y) of the newest pair, `(R, 1)`; one where there is none.
    """

    displacements: Tensor
    changes: Tensor
    products: Tensor
    scale: Tensor

    @classmethod
    def empty(cls, points: Tensor, history: int) -> _Curvature:
        """No pairs yet, for points `(R, D)`."""
        rows, size = points.shape
        pairs = points.new_zeros(rows, history, size)
        products = _identity(points, history).repeat(rows, 1, 1)
        return cls(pairs, pairs.clone(), products, points.new_ones(rows, 1))

    @property
    def any(self) -> Tensor:
        """Which rows have a pair, `(R, 1)`."""
        return (self.displacements[:, -1] != 0).any(1, keepdim=True)

    def add_pair(self, displacement: Tensor, change: Tensor, wanted: Tensor) -> _Curvature:
        """Add a pair to the `wanted` rows `(R, 1)` that have positive curvature."""
        product, square = _dot(displacement, change), _dot(change, change)
        taken = wanted & (product > _LEAST_CURVATURE)
        each = taken.unsqueeze(2)
        displacements = _append(self.displacements, displacement)
        older = torch.nn.functional.pad(self.products[:, 1:, 1:], (0, 0, 0, 1))
        products = torch.cat([older, _inner(displacements, change).unsqueeze(2)], 2)
        return _Curvature(
            torch.where(each, displacements, self.displacements),
            torch.where(each, _append(self.changes, change), self.changes),
            torch.where(each, products, self.products),
            torch.where(taken, product / square, self.scale),
        )

    def forget(self, rows: Tensor) -> _Curvature:
        """Remove the pairs of these rows `(R, 1)`."""
        each = rows.unsqueeze(2)
        return _Curvature(
            torch.where(each, 0, self.displacements),
            torch.where(each, 0, self.changes),
            torch.where(each, _identity(self.scale, self.products.shape[1]), self.products),
            torch.where(rows, 1, self.scale),
        )

    def direction(self, gradients: Tensor) -> Tensor:
        """Minus the inverse Hessian times the gradients.

        The two loops of the recursion are two triangular systems:

            P a = S q,   r = scale (q - Y^T a),   P^T b = diag(P) a - Y r,   d = r + S^T b

        with q = -g and P = triu(S Y^T). A loop over the slots would launch hundreds of kernels.
        """
        # In double precision, which is cheap at this size and is never rounded to TF32.
        products = self.products.double()
        down = -gradients
        inner = _inner(self.displacements, down).double().unsqueeze(2)
        first = torch.linalg.solve_triangular(products, inner, upper=True)
        scaled = self.scale * (down - _weighted_sum(self.changes, first))
        inner = products.diagonal(dim1=1, dim2=2).unsqueeze(2) * first
        inner = inner - _inner(self.changes, scaled).double().unsqueeze(2)
        second = torch.linalg.solve_triangular(products.mT, inner, upper=False)
        return scaled + _weighted_sum(self.displacements, second)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each row, `(R, 1)`, not as a matrix product, which may round to TF32."""
    return (a * b).sum(1, keepdim=True)


def _inner(pairs: Tensor, vectors: Tensor) -> Tensor:
    """Inner products of every slot with the row's vector, `(R, m)`."""
    return (pairs * vectors.unsqueeze(1)).sum(2)


def _weighted_sum(pairs: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the slots of each row, `(R, D)`."""
    return (pairs * weights.to(pairs.dtype)).sum(1)


def _append(pairs: Tensor, newest: Tensor) -> Tensor:
    return torch.cat([pairs[:, 1:], newest.unsqueeze(1)], 1)


def _identity(like: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


_SUFFICIENT = 1e-4
_SHORTEST = 2.0**-10


class _Memory(NamedTuple):
    """The state of each row; `home` is its best point, to which it returns from a bad one."""

    point: Tensor
    gradient: Tensor
    home: Tensor
    lowest: Tensor
    pace: Tensor
    moves: Tensor


class _Evaluation(NamedTuple):
    """Points, what was found there, and whether the objective is the same as at the last step."""

    points: Tensor
    values: Tensor
    gradients: Tensor
    finite: Tensor
    same: Tensor | bool


@dataclass(frozen=True, kw_only=True)
class LBFGS:
    """Limited-memory BFGS; one step is one evaluation, as in `torch.optim.LBFGS(max_iter=1)`.

    Without line search it takes torch's fixed steps: `step_size` along the quasi-Newton direction,
    the first one shortened by min(1, 1 / ||g||_1). A row whose objective or gradient is not finite
    goes back to its best point, forgets its pairs and halves its steps from then on.

    With line search a step must lower the objective by 1e-4 of what the slope promises (Armijo).
    Otherwise the row goes back and tries half the length at its next step, so rows never wait for
    each other. After ten failures the pairs are forgotten.

    Displacements are measured between the points themselves, so a box, a filter or noise between
    two steps does not falsify the curvature. Where the objective has changed, as a fading term
    does, the change of its gradient is not remembered.

    Args:
        step_size: Length of a full step.
        history: Pairs remembered by each row; they take `2 R history D` numbers.
        line_search: Whether to search.
        tolerance: A row whose objective would change by less along its direction stays where it is
            for good; torch has 1e-9.

    Deviations:
        `torch.optim.LBFGS` stops at a tolerance unless told otherwise; this goes on. Its
        `step` makes up to 20 evaluations: 300 iterations in papers are 6000 steps here.

    References:
        Liu and Nocedal, 1989 (liu1989limited); Byrd et al., 1994, on the triangular form
        (byrd1994representations)
    """

    step_size: float = 1.0
    history: int = 100
    line_search: bool = False
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        require_positive(step_size=self.step_size)
        require_at_least(0, tolerance=self.tolerance)
        require_at_least(1, history=self.history)

    def start(self, points: Tensor) -> State:
        """Begin without pairs and with an infinite objective."""
        column = points.new_ones(len(points), 1)
        memory = _Memory(
            point=points.clone(),
            gradient=torch.zeros_like(points),
            home=points.clone(),
            lowest=column * torch.inf,
            pace=column,
            moves=torch.zeros_like(column),
        )
        return (*memory, *_Curvature.empty(points, self.history))

    def step(
        self, points: Tensor, values: Tensor, gradients: Tensor, state: State, moment: Moment
    ) -> tuple[Tensor, State]:
        """Accept or reject the last step, and take the next one."""
        memory, curvature = _Memory(*state[:6]), _Curvature(*state[6:])
        finite = (values.isfinite() & gradients.isfinite().all(1)).unsqueeze(1)
        at = _Evaluation(points, values.unsqueeze(1), gradients, finite, moment.same)
        accept = _accept_if_lower if self.line_search else _accept_finite
        memory, curvature = accept(at, memory, curvature)
        first = (1 / memory.gradient.abs().sum(1, keepdim=True)).clamp_max(1)
        length = torch.where(memory.moves == 1, first, 1)
        pace = moment.scale * self.step_size * memory.pace * length
        direction = curvature.direction(memory.gradient)
        moved = memory.point + pace * direction
        if self.tolerance:
            promised = -_dot(memory.gradient, direction)
            moved = torch.where(promised < self.tolerance, memory.point, moved)
        # A row that went back has no gradient there until it is evaluated again.
        return torch.where(memory.moves > 0, moved, memory.home), (*memory, *curvature)


def _accept_finite(
    at: _Evaluation, memory: _Memory, curvature: _Curvature
) -> tuple[_Memory, _Curvature]:
    """Accept every finite point."""
    displacement, change = at.points - memory.point, at.gradients - memory.gradient
    curvature = curvature.add_pair(displacement, change, at.finite & at.same)
    better = at.finite & (at.values < memory.lowest)
    home = torch.where(better, at.points, memory.home)
    memory = _Memory(
        point=torch.where(at.finite, at.points, home),
        gradient=torch.where(at.finite, at.gradients, 0),
        home=home,
        lowest=torch.where(better, at.values, memory.lowest),
        pace=torch.where(at.finite, memory.pace, memory.pace / 2),
        moves=torch.where(at.finite, memory.moves + 1, 0),
    )
    return memory, curvature.forget(~at.finite)


def _accept_if_lower(
    at: _Evaluation, memory: _Memory, curvature: _Curvature
) -> tuple[_Memory, _Curvature]:
    """Accept a point that is low enough; else stay and halve the step."""
    displacement = at.points - memory.point
    promised = _dot(memory.gradient, displacement).clamp_max(0)
    accepted = at.finite & (at.values <= memory.lowest + _SUFFICIENT * promised)
    # The engine itself sends rows back from points that are not finite, which is no move.
    moved = accepted & ((displacement != 0).any(1, keepdim=True) | (memory.moves == 0))
    change = at.gradients - memory.gradient
    curvature = curvature.add_pair(displacement, change, moved & at.same)
    stuck = ~accepted & curvature.any & (memory.pace < _SHORTEST)
    pace = torch.where(accepted, memory.pace, memory.pace / 2)
    point = torch.where(moved, at.points, memory.point)
    memory = _Memory(
        point=point,
        gradient=torch.where(moved, at.gradients, memory.gradient),
        home=point,
        lowest=torch.where(moved, at.values, memory.lowest),
        pace=torch.where(moved | stuck, 1, pace),
        moves=torch.where(stuck, 1, memory.moves + moved),
    )
    return memory, curvature.forget(stuck)
