"""Whose data is attacked: batches cut from a data set, and everybody else in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core import Batch
from seepage.core.errors import InvalidValue
from seepage.data import Dataset


@dataclass(frozen=True, eq=False)
class Victims:
    """One client's private batch.

    Args:
        data: Name of the data set.
        people: Their numbers in it.
        batch: Their inputs and labels.
        pool: Inputs of everybody else, from which the trivial baselines are made.
        bounds: Lowest and highest value an input can take.
    """

    data: str
    people: tuple[int, ...]
    batch: Batch
    pool: Tensor
    bounds: tuple[float, float] = (0.0, 1.0)


def victims(
    dataset: Dataset, *, people: int, batch_size: int, start: int = 0
) -> tuple[Victims, ...]:
    """Cut consecutive batches from a data set, starting with example `start`."""
    if batch_size < 1 or people < batch_size or people % batch_size:
        raise InvalidValue(
            f"expected people to be a multiple of batch_size, got {people} people in batches of "
            f"{batch_size}"
        )
    firsts = range(start, start + people, batch_size)
    return tuple(_cut(dataset, first, batch_size) for first in firsts)


def _cut(dataset: Dataset, first: int, size: int) -> Victims:
    batch = dataset.batch(size, start=first)
    others = torch.ones(len(dataset), dtype=torch.bool)
    others[first : first + size] = False
    if int(others.sum()) < size:
        raise InvalidValue(
            f"{dataset.name} has {len(dataset)} examples, too few to compare {size} people with "
            "others; use a smaller batch_size"
        )
    people = tuple(range(first, first + size))
    return Victims(dataset.name, people, batch, dataset.inputs[others], dataset.domain.bounds)
