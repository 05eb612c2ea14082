"""Every example's own gradient from one backward pass over the batch.

What a layer read and the slope of the loss at what it gave determine the gradient of its weights,
example by example. `torch.func` differentiates each example apart instead, which on a card turns
convolutions into as many small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from seepage.core import Task


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
