"""Inspect a network before anything is shared: equations, tokens, patches, maps it gives away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import nn

from seepage.attacks.feature_maps._map_layers import find_map_layers
from seepage.attacks.linear_systems._patch_readers import find_patch_readers
from seepage.attacks.text._readers import Reader, count_heads, find_readers, stack_gradients
from seepage.attacks.text._token_span import list_token_readers
from seepage.attacks.text._token_table import find_token_table
from seepage.core import Task, Update
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.exposure._rank_metric import RankMetric, rank_metric
from seepage.probing._first_layer import (
    convolutional_reader,
    draw_noise,
    input_layer,
    input_readers,
    list_calls,
)
from seepage.probing._layer_stack import read_stack


def _hidden_units_needed(batch: int, *, inputs: int, outputs: int) -> int | None:
    """Units that a hidden layer with bias needs so that equations outnumber unknowns.

        n2 + n1 n2 + n1 + n1 d >= B n2 + n1 B + B d
        n1 >= (B (d + n2) - n2) / (d + n2 + 1 - B)

    This is about B for inputs of high dimension, and one for one example. It is None if no width
    is enough: the batch is as large as d + n2 + 1.

    Args:
        batch: Number B of private inputs.
        inputs: Their dimension d.
        outputs: Units n2 of the next layer.

    Example:
        >>> [_hidden_units_needed(size, inputs=1024, outputs=10) for size in (1, 8)]
        [1, 9]

    References:
        Qian and Hansen, 2020, Propositions 1 and 2 (qian2020what)
    """
    _require_batch(batch)
    spare = inputs + outputs + 1 - batch
    if spare <= 0:
        return None
    return max(1, math.ceil(Fraction(batch * (inputs + outputs) - outputs, spare)))


def _filters_needed(batch: int, *, before: Sequence[int], after: Sequence[int]) -> int:
    """Filters that a first convolution needs so that its outputs are as many as its inputs.

        h = (d / d')^2 B C   for images; for signals the exponent is 1

    Args:
        batch: Number B of private inputs.
        before: Shape `(C, d, ...)` of one input.
        after: Spatial sizes `(d', ...)` after the convolution.

    Example:
        >>> _filters_needed(4, before=(3, 32, 32), after=(16, 16))
        48

    References:
        Qian and Hansen, 2020, Proposition 3 (qian2020what)
    """
    _require_batch(batch)
    return math.ceil(Fraction(batch * math.prod(before), math.prod(after)))


def _features_determined(batch: int, *, features: int, outputs: int) -> bool:
    """Whether the linear layer after a convolution determines the features it reads.

        n1 >= n2 (B - 1) / (n2 - B)   for 1 < B < n2; always for one example

    Args:
        batch: Number B of private inputs.
        features: Number n1 = h d'^2 of features.
        outputs: Units n2 of the linear layer.

    Example:
        >>> _features_determined(8, features=3072, outputs=10)
        True
        >>> _features_determined(32, features=3072, outputs=10)
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


@dataclass(frozen=True)
class _TokenBudget:
    """What the trained parameters of a network tell about the tokens of a batch.

    Args:
        table: Name of the trained embeddings, whose gradient names every token; None if they are
            frozen.
        tied: Whether the output layer shares them, which hides some.
        layers: Names of the trained layers that read single tokens, such as the matrices A of
            adapters on the first attention, or of its trained keys; without such, of a decoder's
            layers that read prefixes.
        rank: Rows of all their weights together; of trained keys, how many each head has.
        width: Length of the vectors that they read, in one head of keys.
        attack: What reads them.
        shared: Heads of queries that share a key.
    """

    table: str | None
    tied: bool
    layers: tuple[str, ...]
    rank: int
    width: int
    attack: str = "token_span"
    shared: int = 1

    @property
    def tokens(self) -> int:
        """How many tokens of a batch the gradients of these layers determine."""
        # Prefixes are told from others only if a row is left over.
        rows = self.rank - 1 if self.attack == "dager" else self.rank
        return min(rows, max(0, self.width - 1)) // self.shared

    @property
    def advice(self) -> str:
        """What the numbers mean, in one sentence."""
        if self.table is not None and not self.tied:
            return (
                f"every token of a batch of any size leaks from the rows of {self.table} that "
                "have a gradient (bag_of_words): freeze the embeddings, or add noise"
            )
        if not self.layers:
            return (
                "no trained layer reads single tokens or a decoder's prefixes, as where a prompt "
                "or a classifier's head alone is trained; a decoder that predicts the next token "
                "still gives one text away by any trained parameters (next_words), and the rest is "
                "no promise either, since gradients depend on every text: share updates of "
                "several texts, and add noise"
            )
        named = ", ".join(self.layers)
        return (
            f"with {self.rank} rows over {named}, up to {self.tokens} tokens of a batch leak "
            f"exactly ({self.attack}), and fewer of a larger batch: share updates of batches with "
            "many times as many tokens, or add noise"
        )


def _token_budget(task: Task) -> _TokenBudget:
    """Count the tokens that the gradient of a network determines.

    The embeddings name all of them. Else the row space of the gradients of layers that read single
    tokens has room for as many as these layers have rows, below the width of what they read; where
    only a decoder's last layers are trained, that of layers which read prefixes has.

    Example:
        >>> from seepage.zoo import gpt
        >>> _token_budget(gpt(width=64, layers=2, lora=4)).tokens
        12
        >>> _token_budget(gpt(width=64, layers=2)).table
        'tokens.weight'

    Raises:
        NotApplicable: Inputs are no texts.
    """
    table, tied = None, False
    readers: dict[Reader, str] = {}
    with suppress(NotApplicable):
        found = find_token_table(task)
        table, tied = found.weight, found.tied
    with suppress(NotApplicable):
        readers = dict.fromkeys(list_token_readers(task), "token_span")
    with suppress(NotApplicable):
        readers = readers or dict.fromkeys(find_readers(task, tolerance=1e-6).later, "dager")
    counted = []
    for reader, attack in readers.items():
        rows, width = stack_gradients(task, reader, Update(task.parameters)).shape
        heads, shared = count_heads(reader)
        sizes = rows // heads, width // heads
        counted.append(_TokenBudget(table, tied, reader, *sizes, attack, shared))
    return max(counted, key=lambda one: one.tokens, default=_TokenBudget(table, tied, (), 0, 0))


@dataclass(frozen=True)
class _PatchBudget:
    """What the trained parameters of a vision transformer tell about the patches of a batch.

    Args:
        layers: Names of the trained layers that read single patches, such as the matrices A of
            adapters on the first attention.
        rank: Rows of all their weights together.
        width: Length of the vectors that they read.
        patches: Of an image.
        images: How many images the row space of their gradient has room for.
    """

    layers: tuple[str, ...]
    rank: int
    width: int
    patches: int
    images: int

    @property
    def advice(self) -> str:
        """What the numbers mean, in one sentence."""
        named = ", ".join(self.layers)
        if not self.images:
            return (
                f"with {self.rank} rows over {named}, the {self.patches} patches of one image are "
                "not told apart by a closed form known here; gradients still depend on every "
                "image, so this is no promise"
            )
        return (
            f"with {self.rank} rows over {named} and {self.patches} patches of an image, batches "
            f"of up to {self.images} images may leak exactly (april); this says nothing of what "
            "searches bring back from larger ones"
        )


def _patch_budget(task: Task) -> _PatchBudget:
    """Count the images that the gradient of a vision transformer has room for.

    Raises:
        NotApplicable: The network cuts no patches, or trains no layer that reads them.
    """
    found = find_patch_readers(task)
    rows, width = stack_gradients(task, found.first, Update(task.parameters)).shape
    return _PatchBudget(found.first, rows, width, found.count, found.room(task))


@dataclass(frozen=True)
class _MapBudget:
    """What a deep convolution tells about the feature maps of a batch.

    Args:
        layer: Name of the layer with room for most.
        outputs: Its channels.
        positions: Patches that it reads of one input.
        people: The largest batch whose patches its gradient can span.
    """

    layer: str
    outputs: int
    positions: int
    people: int

    @property
    def advice(self) -> str:
        """What the numbers mean, in one sentence."""
        return (
            f"with {self.outputs} outputs at {self.positions} positions, {self.layer} gives away "
            f"what it read of up to {self.people} inputs of one batch (feature_maps), trained or "
            "not: share updates of larger batches, or add noise"
        )


def _map_budget(task: Task) -> _MapBudget | None:
    """Find the layer whose gradient has room for the feature maps of most people.

    Example:
        >>> from seepage.zoo import resnet18
        >>> _map_budget(resnet18()).people
        31
    """
    able = [layer for layer in find_map_layers(task).values() if layer.serves and layer.budget]
    if not able:
        return None
    found = max(able, key=lambda layer: layer.budget)
    return _MapBudget(found.name, found.outputs, found.positions, found.budget)


BATCHES = (1, 8, 32)


@dataclass(frozen=True)
class _Count:
    """How wide the first layer must be for a batch (None: no width is enough), and if it is."""

    batch: int
    needed: int | None
    enough: bool


@dataclass(frozen=True)
class FirstLayerCount:
    """The layer that reads the input, with its width in `kind`: "hidden units" or "filters"."""

    name: str
    kind: str
    width: int
    counts: tuple[_Count, ...]


@dataclass(frozen=True)
class Inspection:
    """What is known about a network before any update is shared.

    Args:
        model: Name of the task.
        metric: The rank metric, or None if it is not defined.
        outside: Why it is not defined; empty if it is.
        closed_form: Name of a layer that gives away the input of one example in closed form: fully
            connected, with a bias, trained, and reading the input itself.
        first: The trained layer that reads the input, or None if it is of another kind.
        texts: What it tells about the tokens of texts; None if inputs are something else.
        patches: What it tells about the patches of images; None if it is no vision transformer.
        maps: What a deep convolution tells about feature maps; None if none does.
    """

    model: str
    metric: RankMetric | None
    outside: str
    closed_form: str | None
    first: FirstLayerCount | None
    texts: _TokenBudget | None = None
    patches: _PatchBudget | None = None
    maps: _MapBudget | None = None


def inspection(
    task: Task, *, numerical: bool = False, batches: Sequence[int] = BATCHES
) -> Inspection:
    """Inspect a network: its rank metric if it has one, and equation counts of its first layer.

    Example:
        >>> from seepage.zoo import resnet20
        >>> found = inspection(resnet20())
        >>> found.metric is None, found.first.kind, found.first.width
        (True, 'filters', 16)

    References:
        Chen and Campbell, 2022 (chen2022analysing); Qian and Hansen, 2020 (qian2020what)
    """
    metric, outside = None, ""
    if task.domain.discrete:
        reason = "inputs are texts, which no convolution reads"
        return Inspection(task.name, None, reason, None, None, _token_budget(task))
    try:
        metric = rank_metric(task, numerical=numerical)
    except NotApplicable as error:
        outside = str(error)
    first = _count_first_layer(task, batches)
    patches = None
    with suppress(NotApplicable):
        patches = _patch_budget(task)
    layer = input_layer(task)
    # A frozen layer leaves no gradient in the update.
    trained = {f"{layer}.weight", f"{layer}.bias"} <= task.parameters.keys()
    closed_form = layer if trained else None
    maps = _map_budget(task)
    return Inspection(task.name, metric, outside, closed_form, first, patches=patches, maps=maps)


def _count_first_layer(task: Task, batches: Sequence[int]) -> FirstLayerCount | None:
    readers = [name for name in input_readers(task) if f"{name}.weight" in task.parameters]
    if readers:
        return _count_linear(task, readers[0], batches)
    name = convolutional_reader(task)
    trained = f"{name}.weight" in task.parameters
    return _count_convolution(task, name, batches) if name and trained else None


def _count_linear(task: Task, name: str, batches: Sequence[int]) -> FirstLayerCount:
    linear = {n: m for n, m in task.model.named_modules() if isinstance(m, nn.Linear)}
    order = [called for called, _ in list_calls(task, nn.Linear, draw_noise(task))]
    after = order[order.index(name) + 1 :]
    outputs = linear[after[0]].out_features if after else 0
    inputs, width = linear[name].in_features, linear[name].out_features
    counts = []
    for batch in batches:
        needed = _hidden_units_needed(batch, inputs=inputs, outputs=outputs)
        counts.append(_Count(batch, needed, needed is not None and width >= needed))
    return FirstLayerCount(name, "hidden units", width, tuple(counts))


def _count_convolution(task: Task, name: str, batches: Sequence[int]) -> FirstLayerCount:
    layer = task.model.get_submodule(name)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    with torch.no_grad():
        blank = torch.zeros(1, *task.domain.shape).to(layer.weight)
        filters, *after = layer(blank).shape[1:]
    try:
        widths = [layer.channels for layer in read_stack(task).layers]
    except NotApplicable:
        widths = []
    counts = []
    for batch in batches:
        needed = _filters_needed(batch, before=task.domain.shape, after=after)
        determined = len(widths) != 2 or _features_determined(
            batch, features=filters * math.prod(after), outputs=widths[1]
        )
        counts.append(_Count(batch, needed, filters >= needed and determined))
    return FirstLayerCount(name, "filters", filters, tuple(counts))
