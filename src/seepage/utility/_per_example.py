"""Fast per-example gradients, and running statistics during training.

A layer's input and the gradient of the loss at its output determine the gradient of its weights,
example by example, from one backward pass over the batch. `torch.func` differentiates each example
separately instead, which turns a convolution on a GPU into many small ones. The results equal those
of the client that is attacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from seepage.clients._gradient import Gradient
from seepage.core import LocalComputation, Task, Update
from seepage.core._task import batchnorm_layers
from seepage.core._update import Granularity, join_rows


def _per_example_gradients(task: Task, inputs: Tensor, labels: Tensor) -> dict[str, Tensor] | None:
    """Compute the gradient of every example's loss, `(B, ...)` by parameter name.

    Args:
        task: Its layers must see one example at a time, and its parameters require gradients.
        inputs: `(B, ...)`, in natural units.
        labels: Labels of the inputs.

    Returns:
        None if a parameter is frozen, is used twice, belongs to a kind of layer that is not in
        `LAYERS`, or if the output of its layer is changed in place.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.bundled("photos", size=3)
        >>> task = sp.zoo.mlp(hidden=(4,))
        >>> task.model.requires_grad_() and None
        >>> each = _per_example_gradients(task, photos.inputs, photos.labels)
        >>> plain = sp.Gradient()(task, photos.inputs, photos.labels).tensors
        >>> all(torch.allclose(each[name].mean(0), plain[name], atol=1e-6) for name in plain)
        True

    References:
        Goodfellow, 2015 (goodfellow2015efficient)
    """
    layers = _find_layers(task.model)
    if layers is None:
        return None
    calls: dict[str, list[tuple[Tensor, Tensor, int]]] = {name: [] for name in layers}

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls[name].append((inputs[0], output, output._version))

        return hook

    handles = [layer.register_forward_hook(record(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            losses = task.loss(task.model(task.domain.normalise(inputs)), labels)
    finally:
        for handle in handles:
            handle.remove()
    if any(len(heard) != 1 for heard in calls.values()):
        return None
    heard = [heard[0] for heard in calls.values()]
    # A change in place, or a layer that merges examples, makes the gradient at the output useless.
    if any(len(read) != len(inputs) or out._version != version for read, out, version in heard):
        return None
    slopes = torch.autograd.grad(losses.sum(), [output for _, output, _ in heard])
    gradients: dict[str, Tensor] = {}
    with torch.no_grad():
        for (name, layer), (read, *_), slope in zip(layers.items(), heard, slopes, strict=True):
            for part, gradient in LAYERS[type(layer)](layer, read, slope).items():
                gradients[f"{name}.{part}" if name else part] = gradient
    return {name: gradients[name] for name, _ in task.model.named_parameters()}


def _find_layers(model: nn.Module) -> dict[str, nn.Module] | None:
    """Find the layers that hold parameters, or None if one of them is not supported."""
    owned = {name: list(m.parameters(recurse=False)) for name, m in model.named_modules()}
    layers = {name: m for name, m in model.named_modules() if owned[name]}
    parameters = list(model.parameters())
    tied = sum(map(len, owned.values())) != len(parameters)
    supported = all(type(m) in LAYERS and _is_plain(m) for m in layers.values())
    return layers if supported and not tied and all(p.requires_grad for p in parameters) else None


def _is_plain(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv2d):
        return True
    zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return zeros and layer.groups == 1


def _add_bias(layer: nn.Module, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {"weight": weight} | ({} if layer.bias is None else {"bias": bias})


def _differentiate_linear(layer: nn.Module, read: Tensor, slope: Tensor) -> dict[str, Tensor]:
    between = slope.flatten(1, -2) if slope.ndim > 2 else slope.unsqueeze(1)
    weight = torch.einsum("blo,bli->boi", between, read.reshape(*between.shape[:2], -1))
    return _add_bias(layer, weight, between.sum(1))


def _differentiate_convolution(layer: nn.Module, read: Tensor, slope: Tensor) -> dict[str, Tensor]:
    """Sum slope times window over all positions, with one matrix product per example."""
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
    return _add_bias(layer, weight, slope.sum((2, 3)))


def _differentiate_group_norm(layer: nn.Module, read: Tensor, slope: Tensor) -> dict[str, Tensor]:
    norm = cast(nn.GroupNorm, layer)
    plain = nn.functional.group_norm(read, norm.num_groups, eps=norm.eps)
    others = tuple(range(2, slope.ndim))
    products = slope * plain
    weight = products.sum(others) if others else products
    return _add_bias(layer, weight, slope.sum(others) if others else slope)


LAYERS: Mapping[type, Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]] = MappingProxyType(
    {
        nn.Linear: _differentiate_linear,
        nn.Conv2d: _differentiate_convolution,
        nn.GroupNorm: _differentiate_group_norm,
    }
)
"""From a layer, its input and the gradient at its output to the gradients of its parameters."""


# Examples whose gradients are computed together, limited by the memory for their activations.
CHUNK = 512
# The same when `torch.func` differentiates each example separately.
CHUNK_SEPARATE = 64


@dataclass(frozen=True, eq=False)
class TrackStatistics:
    """A computation that also keeps the running statistics of batch normalisation.

    `Gradient` runs by ordinary automatic differentiation, which is faster than `torch.func` and
    updates the statistics as it runs. Any other computation takes one more pass over the data.

    Args:
        local: The computation.
        model: Keeps the statistics, even if a defense trains a copy of the network.
    """

    local: LocalComputation
    model: nn.Module

    @property
    def produces(self) -> tuple[Granularity, ...]:
        """The granularities of the computation."""
        return self.local.produces

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Compute the same update, and the statistics at the broadcast parameters."""
        if not isinstance(self.local, Gradient):
            update = self.local(task, inputs, labels, granularity=granularity)
            if batchnorm_layers(self.model):
                with torch.no_grad():
                    task.model(task.domain.normalise(inputs))
        elif granularity == "per_example":
            return _differentiate_each(task, inputs, labels)
        else:
            named = {n: p for n, p in task.model.named_parameters() if p.requires_grad}
            losses = task.loss(task.model(task.domain.normalise(inputs)), labels)
            reduced = losses.mean() if self.local.reduction == "mean" else losses.sum()
            gradient = torch.autograd.grad(reduced, list(named.values()), materialize_grads=True)
            update = Update(dict(zip(named, gradient, strict=True)))
        _copy_statistics(task.model, self.model)
        return update


def _differentiate_each(task: Task, inputs: Tensor, labels: Tensor) -> Update:
    """Compute per-example gradients: together if the layers allow it, else with `torch.func`."""

    def split(size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(inputs, size), torch.split(labels, size), strict=True)

    if not task.mixes_examples:
        parts = []
        for x, y in split(CHUNK):
            part = _per_example_gradients(task, x, y)
            if part is None:
                break
            parts.append(part)
        else:
            return Update(join_rows(parts), granularity="per_example")
    updates = [Gradient()(task, x, y, granularity="per_example") for x, y in split(CHUNK_SEPARATE)]
    return replace(updates[0], tensors=join_rows([update.tensors for update in updates]))


def _copy_statistics(trained: nn.Module, kept: nn.Module) -> None:
    """Copy running statistics back from a copy of the network that a defense trained."""
    if trained is kept:
        return
    layers = batchnorm_layers(kept)
    for name, layer in batchnorm_layers(trained).items():
        for mine, theirs in zip(layers[name].buffers(), layer.buffers(), strict=True):
            mine.copy_(theirs)
