"""Find the layers that read the input itself, and whether a ReLU follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from seepage.core._rng import Rng
from seepage.core._task import Task
from seepage.core.errors import NotApplicable


def input_layer(task: Task) -> str | None:
    """Name of the linear layer with a bias that reads the flattened network input; None if none.

    Example:
        >>> from seepage.zoo import mlp
        >>> input_layer(mlp())
        'hidden1'
    """
    linear = dict(task.model.named_modules())
    return next((name for name in input_readers(task) if linear[name].bias is not None), None)


def input_readers(task: Task) -> list[str]:
    """Names of all linear layers that read the flattened network input, with or without a bias.

    They are found by running noise and comparing what layers read, so any module will do.
    """
    probe = draw_noise(task)
    calls = list_calls(task, nn.Linear, probe)
    return [name for name, inputs in calls if torch.equal(inputs, probe.flatten(1))]


def convolutional_reader(task: Task) -> str | None:
    """Name of the convolution that reads the network input; None if there is none."""
    probe = draw_noise(task)
    read = list_calls(task, (nn.Conv1d, nn.Conv2d, nn.Conv3d), probe)
    return next((name for name, inputs in read if torch.equal(inputs, probe)), None)


def reads_one_vector(task: Task, name: str) -> bool:
    """Whether this is a linear layer that reads one vector `(n,)` of each example."""
    calls = list_calls(task, nn.Linear, draw_noise(task))
    read = [inputs for called, inputs in calls if called == name]
    return len(read) == 1 and read[0].ndim == 2


def list_calls(
    task: Task, kinds: type[nn.Module] | tuple[type[nn.Module], ...], normalised: Tensor
) -> list[tuple[str, Tensor]]:
    """Every call of such a layer in the order of the forward pass: its name, and what it read."""
    seen: list[tuple[str, Tensor]] = []

    def keep(name: str, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.append((name, arguments[0].clone()))

    network = task.in_mode("eval").network
    with ExitStack() as hooks, torch.no_grad():
        for name, layer in network.named_modules():
            if isinstance(layer, kinds):
                hooks.enter_context(layer.register_forward_pre_hook(partial(keep, name)))
        network(normalised)
    return seen


def draw_noise(task: Task) -> Tensor:
    """Two normalised inputs of noise to run a network on."""
    # With one example a layer applied at every position would look like one applied once.
    return task.domain.normalise(task.move_inputs(task.domain.sample(2, rng=Rng(0))))


_PROBES = 8


@dataclass(frozen=True)
class Rectified:
    """The layer z = W x + b whose silent neurons (z < 0) pass no gradient, and the layer above.

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
def watch_linear_layers(network: nn.Module) -> Iterator[Mapping[str, _Pass]]:
    """Collect what every fully connected layer reads and returns inside the block, by name."""
    passes: dict[str, _Pass] = {}

    def keep(name: str, _: nn.Module, read: tuple[Tensor, ...], returned: Tensor) -> Tensor:
        passes[name] = _Pass(read[0], returned)
        # The next layer gets a copy, since a ReLU may work in place.
        return returned.clone()

    with ExitStack() as hooks:
        for name, layer in network.named_modules():
            if isinstance(layer, nn.Linear):
                hooks.enter_context(layer.register_forward_hook(partial(keep, name)))
        yield passes


def rectified_layer(task: Task) -> Rectified:
    """Find the layer by running noise; raise `NotApplicable` if there is none."""
    name = input_layer(task)
    if name is None:
        raise NotApplicable(
            f"{task.name} has no fully connected layer with a bias that reads its input, so a "
            "batch cannot be separated exactly; use gradient matching"
        )
    task = task.in_mode("eval")
    parameters = task.parameters
    probes = task.domain.sample(_PROBES, rng=Rng(0)).to(task.reference)
    with watch_linear_layers(task.network) as passes:
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
            "falls silent and the examples of a batch cannot be separated; use gradient matching"
        )
    weights = dict(task.network.named_parameters())
    for other, da in above.items():
        if da is None or passes[other].read.shape != z.shape:
            continue
        alone = torch.where(z > 0, da @ weights[f"{other}.weight"], 0)
        if torch.equal(passes[other].read, z.clamp_min(0)) and torch.allclose(alone, dz):
            return Rectified(name, other)
    return Rectified(name, None)
