"""Holding what was captured against the network it is said to be of."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from seepage.capture.setting import Setting
from seepage.core import Task
from seepage.core.errors import InvalidValue
from seepage.core.task import name_unwrapped

# What wrappers put before every name: data-parallel training, per-example gradients.
PREFIXES = ("module.", "_module.")
# Counted during training; no output depends on it, and some frameworks leave it out.
_COUNTER = "num_batches_tracked"


class Broadcast(Protocol):
    """What was sent to the client, and what is said of it."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """By name; empty if they were not captured."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """By name."""

    @property
    def setting(self) -> Setting:
        """How the client computed."""


def fitted(task: Task, broadcast: Broadcast) -> Task:
    """The task with the weights that were broadcast, where these are known."""
    shape = broadcast.setting.shape
    if shape and shape != tuple(task.domain.shape):
        raise InvalidValue(
            f"the capture is of inputs {shape}, but {task.name} is for inputs "
            f"{tuple(task.domain.shape)}; give it the domain of the capture"
        )
    if not broadcast.parameters:
        return task
    model = copy.deepcopy(task.model)
    own = model.state_dict()
    came = bare({**broadcast.parameters, **broadcast.buffers})
    # Buffers that are not there stay as the model has them; parameters must be there.
    required = dict(model.named_parameters())
    _require(task, came, required=required, known=own, what="the parameters")
    model.load_state_dict({**own, **{n: t.to(own[n]) for n, t in came.items() if n in own}})
    return replace(task, model=model)


def trained(update: Mapping[str, Tensor], task: Task) -> dict[str, Tensor]:
    """The part of an update that is of trainable parameters, in the order of the task."""
    came = bare(update)
    known = task.model.state_dict()
    _require(task, came, required=task.parameters, known=known, what="the update")
    return {name: came[name] for name in task.parameters}


def bare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names the network itself gives them.

    Example:
        >>> import torch
        >>> list(bare({"_module.fc.weight": torch.zeros(1)}))
        ['fc.weight']
    """
    tensors = {name_unwrapped(name): t for name, t in tensors.items()}
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return bare({name.removeprefix(prefix): t for name, t in tensors.items()})
    return tensors


def _require(
    task: Task,
    came: Mapping[str, Tensor],
    *,
    required: Mapping[str, Tensor],
    known: Mapping[str, Tensor],
    what: str,
) -> None:
    problems = [f"{n} is missing" for n in required if n not in came]
    problems += [f"{n} is not in it" for n in came if n not in known and _COUNTER not in n]
    problems += [
        f"{n} is {tuple(known[n].shape)}, not {tuple(came[n].shape)}"
        for n in came
        if n in known and known[n].shape != came[n].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InvalidValue(
            f"{what} of this capture do not fit {task.name}: {'; '.join(problems[:3])}{more}; "
            "build the network that was trained"
        )
