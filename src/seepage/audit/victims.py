"""Whose data is attacked: batches cut from a data set, and everybody else in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.core import Batch
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue
from seepage.data import Dataset


@dataclass(frozen=True, eq=False)
class Victims:
    """One client's private batch.

    Args:
        data: Name of the data set.
        people: Their numbers in it.
        batch: Their inputs and labels.
        everybody: Inputs of the whole data set, held once for all its batches.
        bounds: Lowest and highest value an input can take.
        source: Digest of the inputs of the data set; computed if empty.
    """

    data: str
    people: tuple[int, ...]
    batch: Batch
    everybody: Tensor
    bounds: tuple[float, float] = (0.0, 1.0)
    source: str = ""

    @property
    def pool(self) -> Tensor:
        """Inputs of everybody else, from which the trivial baselines are made."""
        others = torch.ones(len(self.everybody), dtype=torch.bool)
        others[list(self.people)] = False
        return self.everybody[others]

    @cached_property
    def digest(self) -> str:
        """A hash of everything here that decides a result."""
        source = self.source or digest(self.everybody)
        words = f"{self.data} {self.people} {self.bounds} {source}"
        return digest(words, self.batch.inputs, self.batch.labels)


def victims(
    dataset: Dataset, *, people: int | Sequence[int], batch_size: int, start: int = 0
) -> tuple[Victims, ...]:
    """Cut batches from a data set.

    Args:
        dataset: Whose people.
        people: How many, one after the other from `start` on, or their numbers.
        batch_size: How many share an update.
        start: Number of the first, where `people` is how many.
    """
    counted = isinstance(people, int)
    numbers = tuple(range(start, start + people) if isinstance(people, int) else people)
    if batch_size < 1 or len(numbers) < batch_size or len(numbers) % batch_size:
        raise InvalidValue(
            f"expected people to be a multiple of batch_size, got {len(numbers)} people in batches "
            f"of {batch_size}"
        )
    if not counted and (start or len(set(numbers)) < len(numbers)):
        raise InvalidValue(
            f"expected different people by number and no start, got {list(numbers)} and {start}"
        )
    cuts = [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
    return tuple(_cut(dataset, cut) for cut in cuts)


def _cut(dataset: Dataset, people: tuple[int, ...]) -> Victims:
    first, size = people[0], len(people)
    in_a_row = people == tuple(range(first, first + size))
    batch = dataset.batch(size, start=first) if in_a_row else dataset.take(people)
    if len(dataset) < 2 * len(people):
        raise InvalidValue(
            f"{dataset.name} has {len(dataset)} examples, too few to compare {len(people)} people "
            "with others; use a smaller batch_size"
        )
    bounds = dataset.domain.bounds
    return Victims(dataset.name, people, batch, dataset.inputs, bounds, dataset.digest)
