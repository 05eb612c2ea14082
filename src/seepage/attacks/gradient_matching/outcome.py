"""What came of the rows of a case."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.run import State


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of one case.

    Args:
        point: The best point of the best restart.
        points: The best point of every restart, `(R, D)`.
        value: Its objective.
        values: The objective of that restart at every step.
        finals: The best objective of every restart.
        diverged: How many restarts stopped being finite.
        seconds: Its share of the time of the run, with all cases in it.
    """

    point: Tensor
    points: Tensor
    value: float
    values: tuple[float, ...]
    finals: tuple[float, ...]
    diverged: int
    seconds: float


def part_of(state: State, index: int, cases: int) -> State:
    """The rows of one case of a chunk."""
    count = len(state.points) // cases
    rows = slice(index * count, (index + 1) * count)
    return state._replace(
        points=state.points[rows],
        best=state.best[rows],
        lowest=state.lowest[rows],
        diverged=state.diverged[rows],
        values=state.values[:, rows],
        memory=(),
    )


def outcome_of(parts: list[State], seconds: float) -> Outcome:
    """The best of all restarts of one case, from the chunks they ran in."""
    lowest = torch.cat([part.lowest for part in parts])
    winner = int(lowest.argmin())
    values = torch.cat([part.values for part in parts], dim=1)
    points = torch.cat([part.best for part in parts])
    return Outcome(
        point=points[winner],
        points=points,
        value=float(lowest[winner]),
        values=tuple(values[:, winner].tolist()),
        finals=tuple(lowest.tolist()),
        diverged=sum(int(part.diverged.sum()) for part in parts),
        seconds=seconds,
    )
