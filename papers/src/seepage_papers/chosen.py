"""People chosen by a rule that was fixed before anything ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from seepage.clients import Gradient
from seepage.core import Task
from seepage.core.errors import UnknownName
from seepage.data import Dataset

# Gradients that are held at once.
SIDE = 32
Rule = Callable[[Dataset, Task, int], list[int]]


def gradient_norms(dataset: Dataset, task: Task, among: int) -> list[float]:
    """The norm of the gradient of each of the first examples.

    Networks in training mode with batch normalisation are refused: they mix the batch, so that one
    example has no gradient of its own.

    Raises:
        InvalidValue: Batch normalisation is in training mode.
    """
    reference = next(iter(task.parameters.values()))
    batch = dataset.batch(min(among, len(dataset))).to(
        device=reference.device, dtype=reference.dtype
    )
    norms: list[float] = []
    for start in range(0, len(batch), SIDE):
        some = slice(start, start + SIDE)
        inputs, labels = batch.inputs[some], batch.labels[some]
        each = Gradient()(task, inputs, labels, granularity="per_example")
        squares = [tensor.flatten(1).double().square().sum(1) for tensor in each]
        norms += torch.stack(squares).sum(0).sqrt().tolist()
    return norms


def _smallest(dataset: Dataset, task: Task, among: int) -> list[int]:
    norms = gradient_norms(dataset, task, among)
    return sorted(range(len(norms)), key=norms.__getitem__)


def _largest(dataset: Dataset, task: Task, among: int) -> list[int]:
    return _smallest(dataset, task, among)[::-1]


def _distinct(dataset: Dataset, task: Task, among: int) -> list[int]:
    del task
    first: dict[int, int] = {}
    for number, label in enumerate(dataset.labels[:among].tolist()):
        first.setdefault(label, number)
    return list(first.values())


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "smallest_gradient": _smallest,
        "largest_gradient": _largest,
        "distinct_labels": _distinct,
    }
)


def chosen(table: Mapping[str, Any], dataset: Dataset, task: Task) -> list[int]:
    """The numbers of the people that a rule picks.

    Args:
        table: `choose` (a rule), `count` and `among`, the number of first examples to choose from.
        dataset: Whom from.
        task: The network they meet.
    """
    rule = table["choose"]
    if rule not in RULES:
        raise UnknownName("rule", rule, RULES)
    return RULES[rule](dataset, task, table["among"])[: table["count"]]
