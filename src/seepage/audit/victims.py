"""Whose data is attacked: batches cut from a data set, and everybody else in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.audit.judged import Judged, plain
from seepage.audit.tapped import Tapped
from seepage.core import Batch, Domain, Metric, Reconstruction, Rng, Task
from seepage.core.digest import digest
from seepage.core.domain import said
from seepage.core.errors import InvalidValue
from seepage.data import Dataset
from seepage.scoring import baseline_scores, score


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
        tapped: The update they shared, where it was captured; else it is computed from the batch.
        domain: What an input is, where that is known.
    """

    data: str
    people: tuple[int, ...]
    batch: Batch
    everybody: Tensor
    bounds: tuple[float, float] = (0.0, 1.0)
    source: str = ""
    tapped: Tapped | None = None
    domain: Domain | None = None

    @property
    def pool(self) -> Tensor:
        """Inputs of everybody else, from which the trivial baselines are made."""
        others = torch.ones(len(self.everybody), dtype=torch.bool)
        others[list(self.people)] = False
        return self.everybody[others]

    @cached_property
    def digest(self) -> str:
        """A hash of everything here that decides a result."""
        words = f"{self.data} {self.people} {self.bounds} {self._origin}"
        captured = () if self.tapped is None else (self.tapped.digest,)
        return digest(words, self.batch.inputs, self.batch.labels, *captured)

    @cached_property
    def secret(self) -> str:
        """A hash of the private data that is neither shown nor stored; see `client_key`."""
        words = f"{self.data} {self.people} {self._origin}"
        return digest("secret", words, self.batch.inputs, self.batch.labels)

    @cached_property
    def _origin(self) -> str:
        return self.source or digest(self.everybody)

    @property
    def truth(self) -> Tensor | None:
        """The private inputs."""
        return self.batch.inputs

    @property
    def said(self) -> tuple[tuple[str, ...], ...]:
        """Their inputs in words, where people read them."""
        return () if self.domain is None else said(self.domain, self.batch.inputs)

    def kept(self) -> dict[str, Tensor]:
        """What an audit keeps of them."""
        return {"inputs": self.batch.inputs, "labels": self.batch.labels}

    def check(self, task: Task) -> None:
        """Raise `InvalidValue` unless this task can be trained on their data."""
        task.check(self.batch)
        if self.tapped is not None:
            self.tapped.observe(task)

    def judge(self, guess: Reconstruction, *, metrics: Sequence[Metric] | None, rng: Rng) -> Judged:
        """Score a guess and the guesses that need no update, in the units of the data set."""
        low, high = self.bounds
        peak, domain = high - low, self.domain
        scores = score(guess, self.batch, metrics=metrics, low=low, peak=peak, domain=domain)
        trivial = baseline_scores(
            self.batch,
            pool=self.pool,
            metrics=scores.metrics,
            rng=rng,
            low=low,
            peak=peak,
            domain=domain,
        )
        baselines = {name: plain(scored) for name, scored in trivial.items()}
        return Judged(self.people, scores.paired.guess, plain(scores), baselines)


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
    if not all(type(number) is int for number in numbers):
        raise InvalidValue(
            f"expected people as how many or as a list of their numbers, got {people!r}"
        )
    if batch_size < 1:
        raise InvalidValue(f"expected batch_size >= 1, got {batch_size!r}")
    if not numbers:
        raise InvalidValue(f"expected people >= 1, or a list of their numbers, got {people!r}")
    if len(numbers) % batch_size:
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
    everybody, domain = dataset.inputs, dataset.domain
    return Victims(
        dataset.name, people, batch, everybody, domain.bounds, dataset.digest, domain=domain
    )
