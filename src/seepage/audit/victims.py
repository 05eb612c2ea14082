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
        pool: Inputs of everybody else, from which the trivial baselines are made.
        bounds: Lowest and highest value an input can take.
        source: Digest of the inputs of the data set, batch and pool; made from the pool if empty.
        tapped: The update they shared, where it was captured; else it is computed from the batch.
        domain: What an input is, where that is known.
    """

    data: str
    people: tuple[int, ...]
    batch: Batch
    pool: Tensor
    bounds: tuple[float, float] = (0.0, 1.0)
    source: str = ""
    tapped: Tapped | None = None
    domain: Domain | None = None

    @cached_property
    def digest(self) -> str:
        """A hash of everything here that decides a result."""
        source = self.source or digest(self.pool)
        words = f"{self.data} {self.people} {self.bounds} {source}"
        captured = () if self.tapped is None else (self.tapped.digest,)
        return digest(words, self.batch.inputs, self.batch.labels, *captured)

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
    return Victims(dataset.name, people, batch, pool, bounds, source, domain=dataset.domain)
