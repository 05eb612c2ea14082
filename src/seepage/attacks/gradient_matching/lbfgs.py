"""L-BFGS for many rows at once, each with its own memory and step length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.curvature import Curvature, dot
from seepage.attacks.gradient_matching.optimisers import Moment, State
from seepage.core.errors import InvalidValue

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
        return (*memory, *Curvature.empty(points, self.history))

    def step(
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        state: State,
        moment: Moment,
    ) -> tuple[Tensor, State]:
        """Judge where the last step led, and take the next one."""
        memory, curvature = _Memory(*state[:6]), Curvature(*state[6:])
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
        curvature: Curvature,
        same: Tensor | bool,
    ) -> tuple[_Memory, Curvature]:
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
        curvature: Curvature,
        same: Tensor | bool,
    ) -> tuple[_Memory, Curvature]:
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
