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
    probe = _probe(task)
    width = probe[0].numel()
    return [
        name
        for name, inputs in linear_calls(task, probe)
        if inputs.shape[-1] == width and torch.equal(inputs.flatten(), probe.flatten())
    ]


def reads_one_vector(task: Task, name: str) -> bool:
    """Whether this is a linear layer that reads one vector `(n,)` of each example."""
    calls = [inputs for called, inputs in linear_calls(task, _probe(task)) if called == name]
    return len(calls) == 1 and calls[0].ndim == 2


def linear_calls(task: Task, normalised: Tensor) -> list[tuple[str, Tensor]]:
    """Every call of a linear layer in the order of the forward pass: its name, and what it read."""
    calls: list[tuple[str, Tensor]] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, arguments: calls.append((name, arguments[0].clone()))

    network = task.in_mode("eval").network
    linear = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear)}
    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in linear.items()]
    try:
        with torch.no_grad():
            network(normalised)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _probe(task: Task) -> Tensor:
    # Two examples: with one, a layer applied at every position would look like one applied once.
    reference = next(iter(task.parameters.values()))
    return task.domain.normalise(task.domain.sample(2, rng=Rng(0)).to(reference))
