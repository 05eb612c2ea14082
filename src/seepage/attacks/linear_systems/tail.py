"""The rest of a network from one layer on, as a task of its own."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import Tensor, nn

from seepage.attacks.linear_systems.stack import Stack
from seepage.core import Observation, Task
from seepage.core.errors import NotApplicable
from seepage.domains import Image, Signal
from seepage.threats import Simulation


def observe_tail(observation: Observation, stack: Stack, index: int) -> Observation:
    """What the adversary sees of the layers from `index` on, whose input is then what is private.

    Args:
        observation: Of the whole network.
        stack: That network.
        index: The first layer to keep, a convolution; 0 keeps them all.
    """
    if index == 0:
        return observation
    simulation = observation.simulate
    if not isinstance(simulation, Simulation):
        raise NotApplicable(
            f"expected a simulation of a Seepage client, got {type(simulation).__name__}; "
            "use rgap(), which needs none"
        )
    first = stack.layers[index]
    kind = Image if len(first.input_shape) == 3 else Signal
    task = Task(
        _Tail(observation.task.model, Stack(stack.layers[index:])),
        observation.task.loss,
        kind(first.input_shape, bounds=stack.layers[index - 1].activation.range),
        name=f"{observation.task.name} from {first.name}",
    )
    seen = observation.update.tensors
    tensors = {
        f"parts.{place}.{part}": seen[name]
        for place, layer in enumerate(stack.layers[index:])
        for part, name in zip(("weight", "bias"), layer.parameters, strict=True)
        if name in seen
    }
    return replace(
        observation,
        task=task,
        update=replace(observation.update, tensors=tensors),
        simulate=Simulation(simulation.client, task),
    )


class _Tail(nn.Module):
    """The modules of some layers, in the precision they had, run as the stack runs them."""

    def __init__(self, model: nn.Module, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        self.parts = nn.ModuleList(
            copy.deepcopy(model.get_submodule(layer.name)) for layer in stack.layers
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer, module in zip(self.stack.layers, self.parts, strict=True):
            x = layer.activation(module(x.reshape(-1, *layer.input_shape)))
        return x
