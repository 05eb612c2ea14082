"""What the architecture alone says about how much a gradient gives away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from seepage.attacks.linear_systems.counting import (
    features_determined,
    filters_needed,
    hidden_units_needed,
)
from seepage.attacks.linear_systems.input_layer import (
    calls,
    convolutional_reader,
    input_layer,
    input_readers,
    noise,
)
from seepage.attacks.linear_systems.rank_metric import RankMetric, rank_metric
from seepage.attacks.linear_systems.stack import Stack, read_stack
from seepage.core import Task
from seepage.core.errors import NotApplicable

BATCHES = (1, 8, 32)


@dataclass(frozen=True)
class Count:
    """How wide the first layer must be for a batch, and whether it is.

    Args:
        batch: Number of private inputs.
        needed: Hidden units or filters; None where no number is enough.
        enough: Whether the equations are as many as the unknowns here.
    """

    batch: int
    needed: int | None
    enough: bool


@dataclass(frozen=True)
class FirstLayer:
    """The layer that reads the input.

    Args:
        name: Of the module.
        kind: What its width counts: "hidden units" or "filters".
        width: How many it has.
        counts: One for each batch size.
    """

    name: str
    kind: str
    width: int
    counts: tuple[Count, ...]


@dataclass(frozen=True)
class Inspection:
    """What can be said of a network before any update is shared.

    Args:
        model: Name of the task.
        metric: The rank metric, or None where it is not defined.
        outside: Why it is not; empty where it is.
        closed_form: Name of a layer that gives away the input of one example as it stands: fully
            connected, with a bias, reading the input itself.
        first: The layer that reads the input, or None if it is of another kind.
    """

    model: str
    metric: RankMetric | None
    outside: str
    closed_form: str | None
    first: FirstLayer | None


def inspection(
    task: Task, *, numerical: bool = False, batches: Sequence[int] = BATCHES
) -> Inspection:
    """Inspect a network: its rank metric where it has one, and counts of its first layer.

    Args:
        task: The network.
        numerical: Compute ranks instead of counting them.
        batches: Batch sizes to count for.

    Example:
        >>> from seepage.zoo import resnet20
        >>> found = inspection(resnet20())
        >>> found.metric is None, found.first.kind, found.first.width
        (True, 'filters', 16)

    References:
        Chen and Campbell, 2022 (chen2022analysing); Qian and Hansen, 2020 (qian2020what)
    """
    metric, outside = None, ""
    try:
        metric = rank_metric(task, numerical=numerical)
    except NotApplicable as error:
        outside = str(error)
    return Inspection(task.name, metric, outside, input_layer(task), _first_layer(task, batches))


def _first_layer(task: Task, batches: Sequence[int]) -> FirstLayer | None:
    modules = dict(task.model.named_modules())
    name = next(iter(input_readers(task)), None)
    if name is not None:
        return _fully_connected(task, name, modules[name], batches)
    name = convolutional_reader(task)
    return None if name is None else _convolution(task, name, modules[name], batches)


def _fully_connected(task: Task, name: str, layer: nn.Module, batches: Sequence[int]) -> FirstLayer:
    assert isinstance(layer, nn.Linear)
    outputs = _units_after(task, name)
    counts = []
    for batch in batches:
        needed = hidden_units_needed(batch, inputs=layer.in_features, outputs=outputs)
        enough = needed is not None and layer.out_features >= needed
        counts.append(Count(batch, needed, enough))
    return FirstLayer(name, "hidden units", layer.out_features, tuple(counts))


def _units_after(task: Task, name: str) -> int:
    """Units of the next fully connected layer; none behind a lone one."""
    units = {n: m.out_features for n, m in task.model.named_modules() if isinstance(m, nn.Linear)}
    order = [called for called, _ in calls(task, nn.Linear, noise(task))]
    after = order[order.index(name) + 1 :]
    return units[after[0]] if after else 0


def _convolution(task: Task, name: str, layer: nn.Module, batches: Sequence[int]) -> FirstLayer:
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    with torch.no_grad():
        blank = torch.zeros(1, *task.domain.shape).to(layer.weight)
        filters, *after = layer(blank).shape[1:]
    widths = _widths(task)
    counts = []
    for batch in batches:
        needed = filters_needed(batch, before=task.domain.shape, after=after)
        determined = len(widths) != 2 or features_determined(
            batch, features=filters * math.prod(after), outputs=widths[1]
        )
        counts.append(Count(batch, needed, filters >= needed and determined))
    return FirstLayer(name, "filters", filters, tuple(counts))


def _widths(task: Task) -> list[int]:
    """Output channels of every layer, where the network is a stack of layers."""
    try:
        stack: Stack = read_stack(task)
    except NotApplicable:
        return []
    return [layer.channels for layer in stack.layers]
