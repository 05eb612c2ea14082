"""Local computations as a training runs them: fast, and with batch statistics kept.

What they compute is what the attacked client computes; `Client` and chain around them are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from seepage.clients import Gradient
from seepage.clients.gradient import Reduction
from seepage.core import LocalComputation, Task, Update
from seepage.core.task import batchnorm_layers
from seepage.core.update import Granularity
from seepage.utility.per_example import per_example_gradients

# Examples whose own gradients are computed together; more need memory for their activations.
CHUNK = 512
# The same where each is differentiated apart.
CHUNK_APART = 64


def as_trained(local: LocalComputation, model: nn.Module) -> LocalComputation:
    """The computation that gives the same update and leaves batch statistics in this model."""
    if isinstance(local, Gradient):
        return Eager(local.reduction, model)
    return Remembering(local, model)


@dataclass(frozen=True, eq=False)
class Eager:
    """`Gradient` by ordinary automatic differentiation, which costs less than `torch.func`.

    Normalisation layers update their running statistics as it runs.

    Args:
        reduction: Of the losses.
        model: Where running statistics are kept, whichever copy of it is trained.
    """

    produces: ClassVar[tuple[Granularity, ...]] = Gradient.produces

    reduction: Reduction
    model: nn.Module

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Differentiate the loss, the whole batch at once or chunk by chunk."""
        if granularity == "per_example":
            return _each(task, inputs, labels)
        named = {n: p for n, p in task.model.named_parameters() if p.requires_grad}
        losses = task.loss(task.model(task.domain.normalise(inputs)), labels)
        reduced = losses.mean() if self.reduction == "mean" else losses.sum()
        gradient = torch.autograd.grad(reduced, list(named.values()), materialize_grads=True)
        _remember(task.model, self.model)
        return Update(dict(zip(named, gradient, strict=True)))


@dataclass(frozen=True, eq=False)
class Remembering:
    """Any other computation, with one more pass over the data for the running statistics.

    Args:
        local: The computation.
        model: Where running statistics are kept.
    """

    local: LocalComputation
    model: nn.Module

    @property
    def produces(self) -> tuple[Granularity, ...]:
        """What the computation gives."""
        return self.local.produces

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Compute, then measure at the broadcast parameters."""
        update = self.local(task, inputs, labels, granularity=granularity)
        if batchnorm_layers(self.model):
            with torch.no_grad():
                task.model(task.domain.normalise(inputs))
            _remember(task.model, self.model)
        return update


def _each(task: Task, inputs: Tensor, labels: Tensor) -> Update:
    found = None if task.mixes_examples else _together(task, inputs, labels)
    return _apart(task, inputs, labels) if found is None else found


def _together(task: Task, inputs: Tensor, labels: Tensor) -> Update | None:
    parts: list[Mapping[str, Tensor]] = []
    for x, y in zip(torch.split(inputs, CHUNK), torch.split(labels, CHUNK), strict=True):
        part = per_example_gradients(task, x, y)
        if part is None:
            return None
        parts.append(part)
    return Update(_joined(parts), granularity="per_example")


def _apart(task: Task, inputs: Tensor, labels: Tensor) -> Update:
    pieces = (torch.split(t, CHUNK_APART) for t in (inputs, labels))
    parts = [
        Gradient()(task, x, y, granularity="per_example") for x, y in zip(*pieces, strict=True)
    ]
    return replace(parts[0], tensors=_joined([part.tensors for part in parts]))


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _remember(trained: nn.Module, kept: nn.Module) -> None:
    """Copy running statistics back where a defense trained a copy of the network."""
    if trained is kept:
        return
    layers = batchnorm_layers(kept)
    for name, layer in batchnorm_layers(trained).items():
        for mine, theirs in zip(layers[name].buffers(), layer.buffers(), strict=True):
            mine.copy_(theirs)
