"""Find the layers that read the input itself, and whether a ReLU follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core import Rng, Task
from seepage.core.errors import NotApplicable


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
    return task.domain.normalise(task.move_inputs(task.domain.sample(2, rng=Rng(0))))


_PROBES = 8


@dataclass(frozen=True)
class Rectified:
    """The layer z = W x + b whose silent neurons (z < 0) pass no gradient, and the one above it.

    Args:
        layer: Name of the layer that reads the flattened input.
        above: Name of the fully connected layer that alone reads relu(z), so that
            dL/dz = [z > 0] * (V^T dL/da) with V its weight; None if there is no such layer.
    """

    layer: str
    above: str | None


@dataclass(frozen=True, eq=False)
class _Pass:
    """What one layer read and returned."""

    read: Tensor
    returned: Tensor


@contextmanager
def watching(network: nn.Module) -> Iterator[Mapping[str, _Pass]]:
    """Collect what every fully connected layer reads and returns inside the block, by name."""
    passes: dict[str, _Pass] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(_: nn.Module, read: tuple[Tensor, ...], returned: Tensor) -> Tensor:
            passes[name] = _Pass(read[0], returned)
            # A copy goes on, lest a ReLU in place overwrite what was returned.
            return returned.clone()

        return hook

    layers = {n: m for n, m in network.named_modules() if isinstance(m, nn.Linear)}
    handles = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()


def rectified_layer(task: Task) -> Rectified:
    """Probe the network with noise, or raise `NotApplicable` if it has no such layer."""
    name = input_layer(task)
    if name is None:
        raise NotApplicable(
            f"{task.name} has no fully connected layer with a bias that reads its input, so a "
            "batch cannot be separated exactly; use gradient matching"
        )
    task = task.in_mode("eval")
    parameters = task.parameters
    probes = task.domain.sample(_PROBES, rng=Rng(0)).to(next(iter(parameters.values())))
    with watching(task.network) as passes:
        outputs = task.outputs(parameters, probes.requires_grad_())
    direction = Rng(1).normal(outputs.shape, like=outputs)
    gradients = torch.autograd.grad(
        (outputs * direction).sum(), [p.returned for p in passes.values()], allow_unused=True
    )
    above = dict(zip(passes, gradients, strict=True))
    z, dz = passes[name].returned, above.pop(name)
    if dz is None or bool(dz[z < 0].any()) or not bool(dz[z > 0].any()):
        raise NotApplicable(
            f"the first layer {name!r} of {task.name} is not followed by a ReLU, so no neuron "
            "falls silent and nothing tells the examples of a batch apart; use gradient matching"
        )
    weights = dict(task.network.named_parameters())
    for other, da in above.items():
        if da is None or passes[other].read.shape != z.shape:
            continue
        alone = torch.where(z > 0, da @ weights[f"{other}.weight"], 0)
        if torch.equal(passes[other].read, z.clamp_min(0)) and torch.allclose(alone, dz):
            return Rectified(name, other)
    return Rectified(name, None)
