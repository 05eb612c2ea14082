"""Whose data is attacked: batches cut from a data set, and everybody else in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.core import Batch
from seepage.core.digest import digest
from seepage.core.domain import said
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
        source: Digest of the inputs of the data set, batch and pool; made from the pool if empty.
        said: Their inputs in words, where people read them.
    """

    data: str
    people: tuple[int, ...]
    batch: Batch
    pool: Tensor
    bounds: tuple[float, float] = (0.0, 1.0)
    source: str = ""
    said: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def digest(self) -> str:
        """A hash of everything here that decides a result."""
        source = self.source or digest(self.pool)
        words = f"{self.data} {self.people} {self.bounds} {source}"
        return digest(words, self.batch.inputs, self.batch.labels)


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
    source = digest(dataset.inputs)
    return tuple(_cut(dataset, source, first, batch_size) for first in firsts)


def _cut(dataset: Dataset, source: str, first: int, size: int) -> Victims:
    batch = dataset.batch(size, start=first)
    others = torch.ones(len(dataset), dtype=torch.bool)
    others[first : first + size] = False
    if int(others.sum()) < size:
        raise InvalidValue(
            f"{dataset.name} has {len(dataset)} examples, too few to compare {size} people with "
            "others; use a smaller batch_size"
        )
    people = tuple(range(first, first + size))
    pool, bounds = dataset.inputs[others], dataset.domain.bounds
    words = said(dataset.domain, batch.inputs)
    return Victims(dataset.name, people, batch, pool, bounds, source, words)
