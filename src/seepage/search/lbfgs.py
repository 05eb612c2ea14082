"""L-BFGS for many rows at once, each with its own memory and step length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.search.optimisers import Moment, State

# As in torch.optim.LBFGS: below it a pair says nothing about curvature that rounding would not.
_LEAST_CURVATURE = 1e-10


class _Curvature(NamedTuple):
    """The pairs of every row, the oldest first; unused slots are zero and come before.

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
        return cls(
            pairs, pairs.clone(), _identity(points, history).repeat(rows, 1, 1), pairs[:, 0, :1] + 1
        )

    @property
    def any(self) -> Tensor:
        """Which rows have a pair, `(R, 1)`."""
        return (self.displacements[:, -1] != 0).any(1, keepdim=True)

    def updated(self, displacement: Tensor, change: Tensor, wanted: Tensor) -> _Curvature:
        """With one more pair in the rows `(R, 1)` that want it and have positive curvature."""
        product, square = dot(displacement, change), dot(change, change)
        taken = wanted & (product > _LEAST_CURVATURE)
        each = taken.unsqueeze(2)
        displacements = _appended(self.displacements, displacement)
        older = torch.nn.functional.pad(self.products[:, 1:, 1:], (0, 0, 0, 1))
        products = torch.cat([older, _inner(displacements, change).unsqueeze(2)], 2)
        return _Curvature(
            torch.where(each, displacements, self.displacements),
            torch.where(each, _appended(self.changes, change), self.changes),
            torch.where(each, products, self.products),
            torch.where(taken, product / square, self.scale),
        )

    def forgotten(self, rows: Tensor) -> _Curvature:
        """Without the pairs of these rows `(R, 1)`."""
        each = rows.unsqueeze(2)
        return _Curvature(
            torch.where(each, 0, self.displacements),
            torch.where(each, 0, self.changes),
            torch.where(each, _identity(self.scale, self.products.shape[1]), self.products),
            torch.where(rows, 1, self.scale),
        )

    def direction(self, gradients: Tensor) -> Tensor:
        """Minus the inverse Hessian times the gradients.

        The two loops of the recursion are two triangular systems, solved at once:

            P a = S q,   r = scale (q - Y^T a),   P^T b = diag(P) a - Y r,   d = r + S^T b

        with q = -g and P = triu(S Y^T). A loop over the slots would launch hundreds of kernels.
        """
        # Doubles cost nothing at this size, and a GPU may not round them to TF32.
        products = self.products.double()
        down = -gradients
        inner = _inner(self.displacements, down).double().unsqueeze(2)
        first = torch.linalg.solve_triangular(products, inner, upper=True)
        scaled = self.scale * (down - _combined(self.changes, first))
        inner = products.diagonal(dim1=1, dim2=2).unsqueeze(2) * first
        inner = inner - _inner(self.changes, scaled).double().unsqueeze(2)
        second = torch.linalg.solve_triangular(products.mT, inner, upper=False)
        return scaled + _combined(self.displacements, second)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each row, `(R, 1)`; no matrix product, which a GPU may round to TF32."""
    return (a * b).sum(1, keepdim=True)


def _inner(pairs: Tensor, vectors: Tensor) -> Tensor:
    """Of every slot with the row's vector, `(R, m)`."""
    return (pairs * vectors.unsqueeze(1)).sum(2)


def _combined(pairs: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the slots of each row, `(R, D)`."""
    return (pairs * weights.to(pairs.dtype)).sum(1)


def _appended(pairs: Tensor, newest: Tensor) -> Tensor:
    return torch.cat([pairs[:, 1:], newest.unsqueeze(1)], 1)


def _identity(like: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


_SUFFICIENT = 1e-4
_SHORTEST = 2.0**-10


class _Memory(NamedTuple):
    """Where each row stands; `home` is the best point, to which it returns from a bad one."""

    point: Tensor
    gradient: Tensor
    home: Tensor
    lowest: Tensor
    pace: Tensor
    moves: Tensor


@dataclass(frozen=True, kw_only=True)
class LBFGS:
    """Limited-memory BFGS; one step is one evaluation, as in `torch.optim.LBFGS(max_iter=1)`.

    Without line search it takes torch's fixed steps: `step_size` along the quasi-Newton direction,
    the first one shortened by min(1, 1 / ||g||_1). A row whose objective or gradient is not finite
    goes back to its best point, forgets its pairs and halves its steps from then on.

    With line search a step must lower the objective by 1e-4 of what the slope promises (Armijo),
    or the row goes back and tries half the length, at its next step: rows never wait for each
    other, and nothing but the number of useful steps depends on the data. After ten failures the
    pairs are forgotten.

    Displacements are measured between the points themselves, so a box, a filter or noise between
    two steps does not falsify the curvature. Nor does a term that fades: where the objective has
    changed, the change of its gradient is not remembered.

    Args:
        step_size: Length of a full step.
        history: Pairs remembered by each row; they take `2 R history D` numbers.
        line_search: Whether to search.

    Deviations:
        `torch.optim.LBFGS` stops where gradient or step fall below a tolerance; this goes on. Its
        `step` makes up to 20 evaluations: 300 iterations in papers are 6000 steps here.

    References:
        Liu and Nocedal, 1989 (liu1989limited); Byrd et al., 1994, on the triangular form
        (byrd1994representations)
    """

    step_size: float = 1.0
    history: int = 100
    line_search: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not self.step_size > 0 or self.history < 1:
            raise InvalidValue(
                f"expected step_size > 0 and history >= 1, got {self.step_size!r} and "
                f"{self.history!r}"
            )

    def start(self, points: Tensor) -> State:
        """No pairs, and any point is better than none."""
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
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        state: State,
        moment: Moment,
    ) -> tuple[Tensor, State]:
        """Judge where the last step led, and take the next one."""
        memory, curvature = _Memory(*state[:6]), _Curvature(*state[6:])
        rule = self._searched if self.line_search else self._fixed
        finite = values.isfinite() & gradients.isfinite().all(1)
        values, finite = values.unsqueeze(1), finite.unsqueeze(1)
        memory, curvature = rule(points, values, gradients, finite, memory, curvature, moment.same)
        length = torch.where(memory.moves == 1, _first_length(memory.gradient), 1)
        pace = moment.scale * self.step_size * memory.pace * length
        moved = memory.point + pace * curvature.direction(memory.gradient)
        # A row that was sent back has no gradient there until it is evaluated again.
        return torch.where(memory.moves > 0, moved, memory.home), (*memory, *curvature)

    def _fixed(
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        finite: Tensor,
        memory: _Memory,
        curvature: _Curvature,
        same: Tensor | bool,
    ) -> tuple[_Memory, _Curvature]:
        """Accept every finite point."""
        displacement, change = points - memory.point, gradients - memory.gradient
        curvature = curvature.updated(displacement, change, finite & same)
        better = finite & (values < memory.lowest)
        home = torch.where(better, points, memory.home)
        memory = _Memory(
            point=torch.where(finite, points, home),
            gradient=torch.where(finite, gradients, 0),
            home=home,
            lowest=torch.where(better, values, memory.lowest),
            pace=torch.where(finite, memory.pace, memory.pace / 2),
            moves=torch.where(finite, memory.moves + 1, 0),
        )
        return memory, curvature.forgotten(~finite)

    def _searched(
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        finite: Tensor,
        memory: _Memory,
        curvature: _Curvature,
        same: Tensor | bool,
    ) -> tuple[_Memory, _Curvature]:
        """Accept a point that is low enough; else stay and halve the step."""
        displacement = points - memory.point
        promised = dot(memory.gradient, displacement).clamp_max(0)
        accepted = finite & (values <= memory.lowest + _SUFFICIENT * promised)
        # The engine itself sends rows back from points that are not finite: that is no move.
        moved = accepted & ((displacement != 0).any(1, keepdim=True) | (memory.moves == 0))
        curvature = curvature.updated(displacement, gradients - memory.gradient, moved & same)
        stuck = ~accepted & curvature.any & (memory.pace < _SHORTEST)
        pace = torch.where(accepted, memory.pace, memory.pace / 2)
        point = torch.where(moved, points, memory.point)
        memory = _Memory(
            point=point,
            gradient=torch.where(moved, gradients, memory.gradient),
            home=point,
            lowest=torch.where(moved, values, memory.lowest),
            pace=torch.where(moved | stuck, 1, pace),
            moves=torch.where(stuck, 1, memory.moves + moved),
        )
        return memory, curvature.forgotten(stuck)


def _first_length(gradients: Tensor) -> Tensor:
    return (1 / gradients.abs().sum(1, keepdim=True)).clamp_max(1)
