"""Sending another network than the one that is being trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.core import Rng, Task
from seepage.core.errors import NotApplicable


def with_parameters(task: Task, values: Mapping[str, Tensor], *, note: str) -> Task:
    """The task with other values of some parameters, named after what was done to them."""
    model = copy.deepcopy(task.model)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
    return replace(task, model=model, name=f"{task.name} {note}")


def behind(task: Task, front: Callable[[nn.Module], nn.Module], *, note: str) -> Task:
    """The task with its network wrapped by another module, which computes with the input."""
    if not task.domain.sample(1, rng=Rng(0)).is_floating_point():
        raise NotApplicable(
            f"expected inputs that can be computed with, got {task.domain}, which a network looks "
            "up; plant in the classifier instead"
        )
    wrapped = front(copy.deepcopy(task.model))
    reference = next(iter(task.parameters.values()))
    return replace(task, model=wrapped.to(reference), name=f"{task.name} {note}")
