"""What the architecture alone says about how much a gradient gives away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import nn

from seepage.core import Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.exposure.rank_metric import RankMetric, rank_metric
from seepage.probing.first_layer import (
    calls,
    convolutional_reader,
    input_layer,
    input_readers,
    noise,
)
from seepage.probing.layer_stack import Stack, read_stack


def hidden_units_needed(batch: int, *, inputs: int, outputs: int) -> int | None:
    """Units that a hidden layer with bias needs so that equations outnumber unknowns.

        n2 + n1 n2 + n1 + n1 d >= B n2 + n1 B + B d
        n1 >= (B (d + n2) - n2) / (d + n2 + 1 - B)

    About B for inputs of high dimension; one unit is enough for one example. None where no width
    is: the batch is as large as d + n2 + 1.

    Args:
        batch: Number B of private inputs.
        inputs: Their dimension d.
        outputs: Units n2 of the layer that follows.

    Example:
        >>> hidden_units_needed(1, inputs=3072, outputs=10), hidden_units_needed(
        ...     8, inputs=1024, outputs=10
        ... )
        (1, 9)

    References:
        Qian and Hansen, 2020, Propositions 1 and 2 (qian2020what)
    """
    _require_batch(batch)
    spare = inputs + outputs + 1 - batch
    if spare <= 0:
        return None
    return max(1, math.ceil(Fraction(batch * (inputs + outputs) - outputs, spare)))


def filters_needed(batch: int, *, before: Sequence[int], after: Sequence[int]) -> int:
    """Filters that a first convolution needs so that its outputs are as many as its inputs.

        h = (d / d')^2 B C

    Along every axis where an image has two; a signal has one.

    Args:
        batch: Number B of private inputs.
        before: Shape `(C, d, ...)` of one input.
        after: Spatial sizes `(d', ...)` behind the convolution.

    Example:
        >>> filters_needed(4, before=(3, 32, 32), after=(16, 16))
        48

    References:
        Qian and Hansen, 2020, Proposition 3 (qian2020what)
    """
    _require_batch(batch)
    return math.ceil(Fraction(batch * math.prod(before), math.prod(after)))


def features_determined(batch: int, *, features: int, outputs: int) -> bool:
    """Whether the linear layer behind a convolution determines the features it reads.

        n1 >= n2 (B - 1) / (n2 - B)   for 1 < B < n2; always for one example

    Args:
        batch: Number B of private inputs.
        features: Number n1 = h d'^2 of features.
        outputs: Units n2 of the linear layer.

    Example:
        >>> features_determined(8, features=3072, outputs=10)
        True
        >>> features_determined(32, features=3072, outputs=10)
        False

    References:
        Qian and Hansen, 2020, Proposition 3 (qian2020what)
    """
    _require_batch(batch)
    if batch == 1:
        return True
    return batch < outputs and features * (outputs - batch) >= outputs * (batch - 1)


def _require_batch(batch: int) -> None:
    if batch < 1:
        raise InvalidValue(f"expected a batch of one or more, got {batch!r}")


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
class FirstLayerCount:
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
    first: FirstLayerCount | None


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


def _first_layer(task: Task, batches: Sequence[int]) -> FirstLayerCount | None:
    modules = dict(task.model.named_modules())
    name = next(iter(input_readers(task)), None)
    if name is not None:
        return _fully_connected(task, name, modules[name], batches)
    name = convolutional_reader(task)
    return None if name is None else _convolution(task, name, modules[name], batches)


def _fully_connected(
    task: Task, name: str, layer: nn.Module, batches: Sequence[int]
) -> FirstLayerCount:
    assert isinstance(layer, nn.Linear)
    outputs = _units_after(task, name)
    counts = []
    for batch in batches:
        needed = hidden_units_needed(batch, inputs=layer.in_features, outputs=outputs)
        enough = needed is not None and layer.out_features >= needed
        counts.append(Count(batch, needed, enough))
    return FirstLayerCount(name, "hidden units", layer.out_features, tuple(counts))


def _units_after(task: Task, name: str) -> int:
    """Units of the next fully connected layer; none behind a lone one."""
    units = {n: m.out_features for n, m in task.model.named_modules() if isinstance(m, nn.Linear)}
    order = [called for called, _ in calls(task, nn.Linear, noise(task))]
    after = order[order.index(name) + 1 :]
    return units[after[0]] if after else 0


def _convolution(
    task: Task, name: str, layer: nn.Module, batches: Sequence[int]
) -> FirstLayerCount:
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
    return FirstLayerCount(name, "filters", filters, tuple(counts))


def _widths(task: Task) -> list[int]:
    """Output channels of every layer, where the network is a stack of layers."""
    try:
        stack: Stack = read_stack(task)
    except NotApplicable:
        return []
    return [layer.channels for layer in stack.layers]
