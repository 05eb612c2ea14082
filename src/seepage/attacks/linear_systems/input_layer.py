"""Find the fully connected layers that read the input itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from seepage.core import Task
from seepage.core.rng import Rng


def input_layer(task: Task) -> str | None:
    """Name of the biased linear layer whose input is the flattened network input, if there is one.

    Example:
        >>> from seepage.zoo import mlp
        >>> input_layer(mlp())
        'hidden1'
    """
    linear = dict(task.model.named_modules())
    return next((name for name in input_readers(task) if linear[name].bias is not None), None)


def input_readers(task: Task) -> list[str]:
    """Names of all linear layers whose input is the flattened network input, biased or not.

    Found by running a noise input and looking for layers that receive exactly that, so it works
    for any module, not only for `nn.Sequential`.
    """
    probe = noise(task)
    # A layer that reads slices of the input at several positions has fewer columns.
    flat = probe.flatten(1)
    return [name for name, inputs in calls(task, nn.Linear, probe) if _same(inputs, flat)]


def convolutional_reader(task: Task) -> str | None:
    """Name of the convolution that reads the input as it is, if there is one."""
    probe = noise(task)
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return next((name for name, inputs in calls(task, kinds, probe) if _same(inputs, probe)), None)


def reads_one_vector(task: Task, name: str) -> bool:
    """Whether this is a linear layer that reads one vector `(n,)` of each example."""
    read = [inputs for called, inputs in calls(task, nn.Linear, noise(task)) if called == name]
    return len(read) == 1 and read[0].ndim == 2


def calls(
    task: Task, kinds: type[nn.Module] | tuple[type[nn.Module], ...], normalised: Tensor
) -> list[tuple[str, Tensor]]:
    """Every call of such a layer in the order of the forward pass: its name, and what it read."""
    seen: list[tuple[str, Tensor]] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, arguments: seen.append((name, arguments[0].clone()))

    network = task.in_mode("eval").network
    layers = {name: m for name, m in network.named_modules() if isinstance(m, kinds)}
    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            network(normalised)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _same(inputs: Tensor, wanted: Tensor) -> bool:
    return inputs.shape == wanted.shape and torch.equal(inputs, wanted)


def noise(task: Task) -> Tensor:
    """Two normalised inputs of noise to run a network on."""
    # Two examples: with one, a layer applied at every position would look like one applied once.
    return task.domain.normalise(task.placed(task.domain.sample(2, rng=Rng(0))))
