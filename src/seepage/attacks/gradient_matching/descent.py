"""The loop: move one candidate downhill and keep the best point that was evaluated.

This is the seam for a faster engine. It knows nothing of networks, terms or threats: only an
objective, a starting point, and the rules to move by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.optimisers import Optimiser
from seepage.attacks.gradient_matching.schedules import Schedule
from seepage.core.progress import report

REPORT_EVERY = 25


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a run ended up.

    Args:
        point: The best point; its own objective was evaluated.
        value: That objective; infinite if no evaluation was finite.
        values: The objective at every step.
    """

    point: Tensor
    value: float
    values: tuple[float, ...]


def descend(
    objective: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    optimiser: Optimiser,
    schedule: Schedule,
    steps: int,
    project: Callable[[Tensor], Tensor],
) -> Descent:
    """Minimise from `start`; a run whose objective stops being finite ends at its best point."""
    point, state = start, optimiser.start(start)
    best, lowest = start, start.new_tensor(torch.inf)
    values: list[Tensor] = []
    for step in range(steps + 1):
        point = point.detach().requires_grad_()
        value = objective(point)
        values.append(value.detach())
        better = values[-1] < lowest
        best = torch.where(better, point.detach(), best)
        lowest = torch.where(better, values[-1], lowest)
        if step % REPORT_EVERY == 0 or step == steps:
            report(step, steps, float(lowest))
            if not bool(torch.isfinite(values[-1])):
                break
        if step < steps:
            (gradient,) = torch.autograd.grad(value, point)
            point, state = optimiser.step(point.detach(), gradient, state, schedule(step, steps))
            point = project(point)
    return Descent(best, float(lowest), tuple(torch.stack(values).tolist()))
