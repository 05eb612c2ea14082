"""Check that an update and its inputs can be attacked at all."""

from __future__ import annotations

import torch

from seepage.core._task import Task
from seepage.core._update import Update
from seepage.core.errors import InvalidValue, NotApplicable


def require_usable(update: Update, task: Task) -> None:
    """Raise unless the update fits the task's parameters, is finite and is not zero."""
    expected = {name: tuple(p.shape) for name, p in task.parameters.items()}
    came = {name: tuple(t.shape) for name, t in update.tensors.items()}
    if expected != came:
        differing = sorted(set(expected.items()) ^ set(came.items()))[0][0]
        raise InvalidValue(
            f"the update does not fit {task.name}: at {differing!r} expected shape "
            f"{expected.get(differing)}, got {came.get(differing)}; was it made with this model?"
        )
    norm = update.norm()
    if not bool(torch.isfinite(norm)):
        raise NotApplicable("the update holds NaN or infinity, so nothing can be matched to it")
    if float(norm) == 0:
        largest = max((float(t.abs().max()) for t in update if t.numel()), default=0.0)
        if largest > 0:
            raise NotApplicable(
                f"the entries of the update are {largest:.1g} at most, so that its norm is zero in "
                "this precision; scale it, or use ReadLogits, which does"
            )
        raise NotApplicable(
            "the update is zero everywhere: nothing was trained, or the defense removed all of it"
        )


def require_continuous(task: Task) -> None:
    """Raise `NotApplicable` where inputs are tokens, which have no gradient to follow."""
    if task.domain.discrete:
        raise NotApplicable(
            f"the inputs of {task.name} are tokens, which cannot be searched by small steps; use "
            "dager"
        )
