"""Whose data is attacked: batches cut from a data set, and everybody else in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from seepage.capture import Capture
from seepage.core import Batch, Domain, Metric, Observation, Protection, Reconstruction, Rng, Task
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue
from seepage.core.task import said
from seepage.data import Dataset
from seepage.defenses import chain
from seepage.scoring import Scores, baseline_scores, score
from seepage.threats import Threat


@dataclass(frozen=True, eq=False)
class CapturedUpdate:
    """What the adversary got hold of.

    Args:
        capture: The update, as it crossed the wire.
        labels: Those of the batch, where the adversary knows them.
    """

    capture: Capture
    labels: Tensor | None = field(default=None)

    @cached_property
    def digest(self) -> str:
        """A hash of all of it."""
        known = () if self.labels is None else (self.labels,)
        return digest(self.capture.digest, *known)

    @property
    def threat(self) -> Threat:
        """What the adversary knows, as records say it."""
        setting = self.capture.setting
        return Threat(
            knows_labels=self.labels is not None,
            knows_batch_size=setting.batch_size is not None or self.labels is not None,
            batchnorm="running" if setting.mode == "eval" else "unknown",
        )

    def observe(self, task: Task, *, defense: Protection | None = None) -> Observation:
        """The adversary's view."""
        reference = next(iter(task.parameters.values()))
        labels = None if self.labels is None else self.labels.to(reference.device)
        known = chain() if defense is None else defense
        return self.capture.observation(task, labels=labels, defense=known)


Plain = Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, eq=False)
class _ScoredGuess:
    """A guess in the order of the people, with its scores.

    Args:
        people: Their numbers.
        guess: `(B, ...)`.
        scores: Metric to one value per person; empty where the truth is not known.
        baselines: The same for each guess that needs no update.
    """

    people: tuple[int, ...]
    guess: Tensor
    scores: Plain = field(default_factory=dict)
    baselines: Mapping[str, Plain] = field(default_factory=dict)


def plain(scores: Scores) -> Plain:
    """One value per person; NaN, which JSON cannot hold, becomes None."""
    return {
        name: tuple(None if math.isnan(v) else v for v in values.tolist())
        for name, values in scores.values.items()
    }


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
    tapped: CapturedUpdate | None = None
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

    def judge(
        self, guess: Reconstruction, *, metrics: Sequence[Metric] | None, rng: Rng
    ) -> _ScoredGuess:
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
        return _ScoredGuess(self.people, scores.paired.guess, plain(scores), baselines)


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


@dataclass(frozen=True, eq=False)
class Strangers:
    """The people behind a captured update, of whom nothing else is known.

    Args:
        data: What records call them.
        tapped: The update they shared.
    """

    data: str
    tapped: CapturedUpdate

    @property
    def people(self) -> tuple[int, ...]:
        """Numbers for as many as there are known to be; the order means nothing."""
        labels, size = self.tapped.labels, self.tapped.capture.setting.batch_size
        return tuple(range(size or (1 if labels is None else len(labels))))

    @property
    def digest(self) -> str:
        """A hash of everything here that decides a result."""
        return self.tapped.digest

    @property
    def truth(self) -> Tensor | None:
        """Nobody has it."""
        return None

    @property
    def said(self) -> tuple[tuple[str, ...], ...]:
        """Nobody can say what it was."""
        return ()

    def kept(self) -> dict[str, Tensor]:
        """Nothing is kept of them but what comes back."""
        return {}

    def check(self, task: Task) -> None:
        """Raise `InvalidValue` unless the update is of this task."""
        self.tapped.observe(task)

    def judge(
        self, guess: Reconstruction, *, metrics: Sequence[Metric] | None, rng: Rng
    ) -> _ScoredGuess:
        """No score without the truth: a guess stands as it is."""
        del metrics, rng
        return _ScoredGuess(tuple(range(len(guess.inputs))), guess.inputs)
