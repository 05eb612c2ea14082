"""The one thing that changes: a network that learns from updates."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from seepage.core import Task, Update
from seepage.core.task import batchnorm_layers
from seepage.zoo.wide_head import random_weights


class Trainee:
    """A copy of a task whose parameters move and whose running statistics are kept.

    The random neurons of a wide head stay as they are: neither gradient nor decay moves them.

    The task it holds stays the same object; its parameters are the network's own memory.
    """

    def __init__(self, task: Task, *, momentum: float, weight_decay: float) -> None:
        """Copy the task, batch normalisation in mode "train" and all other layers as evaluated."""
        model = copy.deepcopy(task.model).eval()
        reference = next(model.parameters())
        if reference.is_cuda:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for layer in batchnorm_layers(model).values():
            layer.train()
        self.task = replace(task, model=model, mode="train")
        named = self.task.model.named_parameters()
        self._weights = {name: p for name, p in named if p.requires_grad}
        self._descent = torch.optim.SGD(
            self._weights.values(), lr=1.0, momentum=momentum, weight_decay=weight_decay
        )
        self._still = [(weights, weights.clone()) for weights in random_weights(self.task.model)]

    def learn(self, update: Update, *, lr: float) -> None:
        """Take one step against the update, a gradient or a difference of parameters."""
        gradient = update.descent().tensors
        for name, weight in self._weights.items():
            weight.grad = gradient[name]
        self._descent.param_groups[0]["lr"] = lr
        self._descent.step()
        self._descent.zero_grad()
        # Descent is entry by entry, so putting entries back is the same as never moving them.
        for weights, drawn in self._still:
            weights.copy_(drawn)

    def diverged(self) -> str | None:
        """The first parameter that is not finite any more, if there is one."""
        names = list(self._weights)
        whole = torch.stack([p.detach().isfinite().all() for p in self._weights.values()])
        return None if bool(whole.all()) else names[int(whole.int().argmin())]

    def snapshot(self) -> Task:
        """What it is now, for good: a task that evaluates with the running statistics."""
        return replace(self.task, model=copy.deepcopy(self.task.model), mode="eval")

    def tensors(self) -> list[Tensor]:
        """All that decides how it goes on: parameters, buffers, momentum."""
        return [*self.task.model.parameters(), *self.task.model.buffers(), *self._velocity()]

    def restore(self, tensors: list[Tensor]) -> None:
        """Go on from what `tensors` gave."""
        for weight in self._weights.values():
            if self._descent.param_groups[0]["momentum"]:
                self._descent.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        with torch.no_grad():
            for mine, saved in zip(self.tensors(), tensors, strict=True):
                mine.copy_(saved)

    def _velocity(self) -> list[Tensor]:
        states = (self._descent.state[weight] for weight in self._weights.values())
        velocity = [state.get("momentum_buffer") for state in states]
        return [buffer for buffer in velocity if buffer is not None]
