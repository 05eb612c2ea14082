"""One run: all rows from their starts to their best points.

The state of a run is a tuple of tensors of fixed shapes and `advance` a pure function of it. So a
step can be captured as a CUDA graph, and a run saved and continued with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from seepage.search.optimisers import Moment, Optimiser
from seepage.search.schedules import Schedule


class State(NamedTuple):
    """Where a run stands.

    Args:
        step: Steps taken, a scalar.
        points: Where the rows are, `(R, D)`.
        best: The point of each row whose own objective was lowest, `(R, D)`.
        lowest: That objective, `(R,)`; infinite until one was finite.
        diverged: Whether a row's objective ever stopped being finite, `(R,)`.
        values: The objective of every row at every step so far, `(steps + 1, R)`.
        memory: The optimiser's state.
    """

    step: Tensor
    points: Tensor
    best: Tensor
    lowest: Tensor
    diverged: Tensor
    values: Tensor
    memory: tuple[Tensor, ...]


# A pure step.
Advance = Callable[[State], State]


@dataclass(frozen=True, eq=False)
class Run:
    """What moves the rows.

    Args:
        evaluate: Values `(R,)` and gradients `(R, D)` at points, given the step.
        optimiser: The rule to move by.
        schedule: The step size over time.
        steps: Steps to take.
        project: Makes points valid.
        same: Whether the objective is at some step what it was at the last; None for always.
    """

    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    optimiser: Optimiser
    schedule: Schedule
    steps: int
    project: Callable[[Tensor], Tensor]
    same: Callable[[Tensor], Tensor | bool] | None = None

    def begin(self, points: Tensor) -> State:
        """The state before the first step."""
        rows = len(points)
        return State(
            step=torch.zeros((), dtype=torch.long, device=points.device),
            points=points.clone(),
            best=points.clone(),
            lowest=points.new_full((rows,), torch.inf),
            diverged=torch.zeros(rows, dtype=torch.bool, device=points.device),
            values=points.new_full((self.steps + 1, rows), torch.nan),
            memory=self.optimiser.start(points),
        )

    def scales(self, like: Tensor) -> Tensor:
        """The schedule as a table; the step after the last one is only evaluated."""
        factors = [self.schedule(step, self.steps) for step in range(self.steps)]
        return like.new_tensor([*factors, 0.0])

    def advance(self, state: State, scales: Tensor) -> State:
        """Evaluate every row, remember the best points, and move.

        A row whose objective is not finite goes back to its best point.
        """
        values, gradients = self.evaluate(state.points, state.step)
        finite = values.isfinite()
        better = finite & (values < state.lowest)
        best = torch.where(better.unsqueeze(1), state.points, state.best)
        # Indexing by a scalar would ask the device for it and break a capture.
        scale = scales.index_select(0, state.step.reshape(1)).squeeze(0)
        same = True if self.same is None else self.same(state.step)
        moment = Moment(state.step, state.step / self.steps, scale, same)
        moved, memory = self.optimiser.step(
            state.points,
            values,
            gradients,
            state.memory,
            moment,
        )
        moved = self.project(moved)
        sound = finite & moved.isfinite().all(1)
        return State(
            step=state.step + 1,
            points=torch.where(sound.unsqueeze(1), moved, best),
            best=best,
            lowest=torch.where(better, values, state.lowest),
            diverged=state.diverged | ~sound,
            values=state.values.index_copy(0, state.step.reshape(1), values.unsqueeze(0)),
            memory=memory,
        )


def tensors_of(state: State) -> list[Tensor]:
    """The tensors of a state, in a fixed order."""
    return [*state[:-1], *state.memory]


def state_of(tensors: list[Tensor]) -> State:
    """Undo `tensors_of`."""
    fixed = len(State._fields) - 1
    step, points, best, lowest, diverged, values = tensors[:fixed]
    return State(step, points, best, lowest, diverged, values, memory=tuple(tensors[fixed:]))
