"""Every example's own gradient from one backward pass over the batch.

What a layer read and the slope of the loss at what it gave determine the gradient of its weights,
example by example. `torch.func` differentiates each example apart instead, which on a GPU turns
convolutions into as many small ones.

What they compute is what the attacked client computes; `Client` and chain around them are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from seepage.clients.gradient import Gradient, Reduction
from seepage.core import LocalComputation, Task, Update
from seepage.core.task import batchnorm_layers
from seepage.core.update import Granularity


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: what it read, what it gave, and how often that was changed in place."""

    inputs: Tensor
    outputs: Tensor
    version: int


def per_example_gradients(task: Task, inputs: Tensor, labels: Tensor) -> dict[str, Tensor] | None:
    """The gradient of every example's loss, `(B, ...)` by parameter.

    Args:
        task: Of layers that see one example at a time; parameters must require gradients.
        inputs: `(B, ...)`, in natural units.
        labels: Of the inputs.

    Returns:
        None where a parameter is used in a way that this does not cover: by another kind of layer
        than those of `LAYERS`, twice, frozen, or before an operation in place.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.bundled("photos", size=3)
        >>> task = sp.zoo.mlp(hidden=(4,))
        >>> task.model.requires_grad_() and None
        >>> each = per_example_gradients(task, photos.inputs, photos.labels)
        >>> plain = sp.Gradient()(task, photos.inputs, photos.labels).tensors
        >>> all(torch.allclose(each[name].mean(0), plain[name], atol=1e-6) for name in plain)
        True

    References:
        Goodfellow, 2015 (goodfellow2015efficient)
    """
    layers = _layers(task.model)
    if layers is None:
        return None
    with torch.enable_grad(), _listening(layers) as calls:
        losses = task.loss(task.model(task.domain.normalise(inputs)), labels)
    found = [calls.get(name, []) for name in layers]
    if not all(len(heard) == 1 and _intact(heard[0], len(inputs)) for heard in found):
        return None
    slopes = torch.autograd.grad(losses.sum(), [heard[0].outputs for heard in found])
    gradients: dict[str, Tensor] = {}
    with torch.no_grad():
        for (name, layer), heard, slope in zip(layers.items(), found, slopes, strict=True):
            for part, gradient in LAYERS[type(layer)](layer, heard[0].inputs, slope).items():
                gradients[f"{name}.{part}" if name else part] = gradient
    return {name: gradients[name] for name, _ in task.model.named_parameters()}


def _layers(model: nn.Module) -> dict[str, nn.Module] | None:
    """The layers that hold the parameters, if all are of kinds that are known here."""
    named = list(model.named_modules())
    holding = {n: m for n, m in named if next(m.parameters(recurse=False), None) is not None}
    if not all(type(m) in LAYERS and _plain(m) for m in holding.values()):
        return None
    owned = sum(len(list(m.parameters(recurse=False))) for m in holding.values())
    parameters = list(model.parameters())
    tied = owned != len(parameters)
    return holding if not tied and all(p.requires_grad for p in parameters) else None


def _plain(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv2d):
        return True
    zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return zeros and layer.groups == 1


@contextmanager
def _listening(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Keep what every layer reads and gives inside the block."""
    calls: dict[str, list[Call]] = {name: [] for name in layers}

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_layer: nn.Module, read: tuple[Tensor, ...], gave: Tensor) -> None:
            calls[name].append(Call(read[0], gave, gave._version))

        return hook

    handles = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _intact(call: Call, size: int) -> bool:
    """Whether examples are still apart, and the slope will be that of what the layer gave."""
    return len(call.inputs) == size and call.outputs._version == call.version


def _with_bias(layer: nn.Module, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {"weight": weight} | ({} if layer.bias is None else {"bias": bias})


def _linear(layer: nn.Module, read: Tensor, slope: Tensor) -> dict[str, Tensor]:
    between = slope.flatten(1, -2) if slope.ndim > 2 else slope.unsqueeze(1)
    weight = torch.einsum("blo,bli->boi", between, read.reshape(*between.shape[:2], -1))
    return _with_bias(layer, weight, between.sum(1))


def _convolution(layer: nn.Module, read: Tensor, slope: Tensor) -> dict[str, Tensor]:
    """A sum over positions of slope times window, a matrix product for every example."""
    conv = cast(nn.Conv2d, layer)
    down, right = cast(tuple[int, int], conv.padding)
    padded = nn.functional.pad(read, (right, right, down, down))
    windows = padded
    for axis in (2, 3):
        size, step, gap = (v[axis - 2] for v in (conv.kernel_size, conv.stride, conv.dilation))
        reach = gap * (size - 1) + 1
        windows = windows.unfold(axis, reach, step)[..., ::gap]
    height, width = slope.shape[2:]
    windows = windows[:, :, :height, :width]
    weight = torch.einsum("bohw,bchwij->bocij", slope, windows)
    return _with_bias(layer, weight, slope.sum((2, 3)))


def _group_norm(layer: nn.Module, read: Tensor, slope: Tensor) -> dict[str, Tensor]:
    norm = cast(nn.GroupNorm, layer)
    plain = nn.functional.group_norm(read, norm.num_groups, eps=norm.eps)
    others = tuple(range(2, slope.ndim))
    products = slope * plain
    weight = products.sum(others) if others else products
    return _with_bias(layer, weight, slope.sum(others) if others else slope)


LAYERS: Mapping[type, Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]] = MappingProxyType(
    {nn.Linear: _linear, nn.Conv2d: _convolution, nn.GroupNorm: _group_norm}
)
"""From what a layer read and the slope at what it gave to its gradients, by kind of layer."""


# Examples whose own gradients are computed together; more need memory for their activations.
CHUNK = 512
# The same where each is differentiated apart.
CHUNK_APART = 64


def as_trained(local: LocalComputation, model: nn.Module) -> LocalComputation:
    """The computation that gives the same update and leaves batch statistics in this model."""
    if isinstance(local, Gradient):
        return _Eager(local.reduction, model)
    return _Remembering(local, model)


@dataclass(frozen=True, eq=False)
class _Eager:
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
class _Remembering:
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
