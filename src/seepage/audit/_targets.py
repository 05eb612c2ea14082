"""Whose data is attacked: the batch behind one update, scored where the truth is known."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from seepage.audit._record import CANARIES, Sent
from seepage.core import (
    Batch,
    Domain,
    Metric,
    Observation,
    Paired,
    Protection,
    Reconstruction,
    Rng,
    Task,
)
from seepage.core._batch import are_numbers, class_numbers
from seepage.core._digest import digest
from seepage.core._domain import describe_inputs
from seepage.core._once import once
from seepage.core._scale import scale_of
from seepage.core.errors import InvalidValue, require_at_least
from seepage.data._dataset import Dataset
from seepage.data._public_data import PublicData
from seepage.scoring import METRICS, Scores, baseline_scores, pair, score
from seepage.scoring._gallery import STRANGERS, Gallery, find_strangers, identify
from seepage.scoring._identification import Identification
from seepage.scoring._scores import add_judged

# Public people that an attack is given, at most.
_PUBLIC = 200

Plain = Mapping[str, tuple[float | None, ...]]

# One gallery for all batches of a data set, so that strangers are prepared once.
_GALLERIES: WeakKeyDictionary[Dataset, Gallery] = WeakKeyDictionary()


class _HeldUpdate(Protocol):
    """An update that is there already, instead of being computed from the batch."""

    @property
    def digest(self) -> str:
        """A hash of all of it."""

    def observe(self, task: Task, *, defense: Protection | None = None) -> Observation:
        """The adversary's view."""


@dataclass(frozen=True, eq=False)
class _ScoredGuess:
    """A guess `(B, ...)` in the order of the examples, with scores if the truth is known."""

    people: tuple[int, ...]
    guess: Tensor
    scores: Plain = field(default_factory=dict)
    baselines: Mapping[str, Plain] = field(default_factory=dict)
    identification: tuple[Identification, ...] = ()
    columns: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Target:
    """The batch behind one update, with or without the private data.

    Args:
        data: Name of the data set or of the capture.
        people: Numbers of the examples in it.
        batch: The private inputs and labels; None if nobody has them.
        everybody: The whole data set, held once for all its batches.
        bounds: Lowest and highest value an input can take.
        source: Digest of `everybody`; computed if empty.
        captured: The update that was captured; None computes it from the batch.
        domain: What an input is, if that is known.
        sampling: How the people were chosen: "at random", "in order" or "by number"; empty if
            nobody knows.
        known_as: Under which data and number each person counts; see `Record`.
        sent: Who sent the captured update; None if it is computed.
    """

    data: str
    people: tuple[int, ...]
    batch: Batch | None = None
    everybody: Gallery | None = None
    bounds: tuple[float, float] = (0.0, 1.0)
    source: str = ""
    captured: _HeldUpdate | None = None
    domain: Domain | None = None
    sampling: str = ""
    known_as: tuple[tuple[str, int], ...] = ()
    sent: Sent | None = None

    def require_batch(self) -> Batch:
        """Return the private batch; raise `InvalidValue` if nobody has it."""
        if self.batch is None:
            raise InvalidValue(
                f"a bound is evaluated at the private inputs, which nobody has for {self.data}; "
                "leave bounds out, or give the truth"
            )
        return self.batch

    @property
    def pool(self) -> Tensor:
        """Inputs of all other examples, from which the trivial baselines are made."""
        assert self.everybody is not None
        return self.everybody.inputs[self._are_others(self.everybody)]

    def _are_others(self, everybody: Gallery) -> Tensor:
        others = torch.ones(len(everybody.inputs), dtype=torch.bool)
        others[list(self.people)] = False
        return others

    @cached_property
    def digest(self) -> str:
        """A hash of everything here that decides a result."""
        captured = () if self.captured is None else (self.captured.digest,)
        if self.batch is None:
            return "".join(captured)
        words = f"{self.data} {self.people} {self.bounds} {self._origin}"
        return digest(words, self.batch.inputs, self.batch.labels, *captured)

    @cached_property
    def secret(self) -> str:
        """A hash of the private data that is neither shown nor stored; see `client_key`."""
        words, batch = f"{self.data} {self.people} {self._origin}", self.require_batch()
        return digest("secret", words, batch.inputs, batch.labels)

    @cached_property
    def _origin(self) -> str:
        assert self.everybody is not None
        return self.source or digest(self.everybody.inputs)

    @property
    def truth(self) -> Tensor | None:
        """The private inputs; None if nobody has them."""
        return None if self.batch is None else self.batch.inputs

    @property
    def words(self) -> tuple[tuple[str, ...], ...]:
        """The private inputs in words, if they are text or tables."""
        if self.batch is None or self.domain is None:
            return ()
        return describe_inputs(self.domain, self.batch.inputs)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What an audit stores of the private batch."""
        batch = self.batch
        return {} if batch is None else {"inputs": batch.inputs, "labels": batch.labels}

    def check(self, task: Task) -> None:
        """Raise `InvalidValue` unless this task fits the batch and the captured update."""
        if self.batch is not None:
            task.check(self.batch)
        if self.captured is not None:
            self.captured.observe(task)

    def score_guess(
        self, guess: Reconstruction, *, metrics: Sequence[Metric] | None, rng: Rng
    ) -> _ScoredGuess:
        """Score a guess and the baselines by `metrics` and what verdicts read, if there is a truth.

        Scores are in the units of the data set.
        """
        if self.batch is None:
            return _ScoredGuess(tuple(range(len(guess.inputs))), guess.inputs)
        low, high = self.bounds
        peak, domain, truth = high - low, self.domain, self.batch
        if metrics is not None:
            same = tuple(range(len(truth)))
            itself = Paired(truth.inputs, truth.inputs, truth.labels, None, same, domain=domain)
            metrics = add_judged(metrics, itself)
        scores = score(guess, truth, metrics=metrics, low=low, peak=peak, domain=domain)
        return _ScoredGuess(
            self.people,
            scores.paired.guess,
            _list_scores(scores),
            self._score_baselines(scores.metrics, rng),
            self.identify(guess),
            self._compare_columns(guess),
        )

    @once
    def _score_baselines(self, metrics: tuple[Metric, ...], rng: Rng) -> Mapping[str, Plain]:
        """Score the guesses that need no update, which are the same for every attack."""
        assert self.everybody is not None
        labels, (low, high) = self.everybody.labels, self.bounds
        trivial = baseline_scores(
            self.require_batch(),
            pool=self.pool,
            labels=None if labels is None else labels[self._are_others(self.everybody)],
            metrics=metrics,
            rng=rng,
            low=low,
            peak=high - low,
            domain=self.domain,
        )
        return {name: _list_scores(scored) for name, scored in trivial.items()}

    def _compare_columns(self, guess: Reconstruction) -> tuple[float, ...]:
        """The share of right columns: of these people first, then of strangers in their place.

        A guess that ignores the update is right in as many columns of strangers with the same
        labels. So the rank of the first number is a p-value, whatever the guess.
        """
        gallery, batch, domain = self.everybody, self.require_batch(), self.domain
        if gallery is None or domain is None or len(guess.inputs) == 0:
            return ()
        metric = METRICS[domain.measure]
        if not scale_of(metric).beyond_luck:
            return ()
        classes = class_numbers(batch.labels)
        labels = [None] * len(batch) if classes is None else classes.tolist()
        beside = [
            gallery.choose_strangers(label=label, without=self._themselves, size=STRANGERS)
            for label in labels
        ]
        kinds = {gallery.describe(some, n) for some, n in zip(beside, labels, strict=True)}
        if not kinds <= {"same label", "any label"}:
            return ()
        # Everybody moves on by one stranger from draw to draw, and nobody stands for two people.
        chosen = [
            torch.stack([some[(draw + place) % len(some)] for place, some in enumerate(beside)])
            for draw in range(min(map(len, beside)))
        ]
        others = [Batch(gallery.inputs[numbers], batch.labels) for numbers in chosen]
        return tuple(
            float(metric(pair(guess, people, domain=domain)).mean()) for people in (batch, *others)
        )

    def identify(
        self, guess: Reconstruction, *, without: Collection[int] = ()
    ) -> tuple[Identification, ...]:
        """Look for each person in a guess, which a negative control made of another batch.

        `without` names more people of the data set who are no strangers.
        """
        if self.everybody is None or len(guess.inputs) == 0:
            return ()
        left_out = {*self._themselves, *without}
        return identify(guess.inputs, self.require_batch(), self.everybody, without=left_out)

    @cached_property
    def _themselves(self) -> tuple[int, ...]:
        """Numbers of these people and, in the public data of a capture, of copies of them.

        In a data set a copy is somebody else: there it is known who is who.
        """
        if self.captured is None or self.everybody is None:
            return self.people
        first = len(self.people)
        others = self.everybody.inputs[first:]
        kept = set(find_strangers(self.require_batch().inputs, others).tolist())
        return (*self.people, *(first + n for n in range(len(others)) if n not in kept))

    @property
    def label_chance(self) -> float | None:
        """How often a guess of the most frequent label would be right; None if not known."""
        labels = None if self.everybody is None else self.everybody.labels
        if labels is None or are_numbers(labels):
            return None
        return float(torch.bincount(labels).max()) / len(labels)

    def choose_public(self, taken: Collection[int]) -> PublicData | None:
        """People of the same data whom nobody attacks, nor anybody with the same inputs.

        At most half of them, and as few strangers as possible: otherwise a guess that resembles
        nobody it was given would single out whoever it was not given.
        """
        gallery = self.everybody
        if gallery is None or gallery.synthetic:
            return None
        if self.captured is not None:
            # The truth of a capture stands first, if there is one, and must not change the choice.
            first = 0 if self.batch is None else len(self.people)
            count = len(gallery.inputs) - first
            rows = Rng(0).fork("public").permutation(count)[: min(_PUBLIC, (count + 1) // 2)]
            chosen = (rows + first).tolist()
        else:
            private = {digest(gallery.inputs[number]) for number in taken}
            free = [number for number in gallery.order.flip(0).tolist() if number not in taken]
            given = free[: min(_PUBLIC, (len(free) + 1) // 2)]
            chosen = [number for number in given if digest(gallery.inputs[number]) not in private]
        if not chosen:
            return None
        labels = None if gallery.labels is None else gallery.labels[chosen]
        return PublicData(gallery.inputs[chosen], labels)

    def choose_canaries(self, taken: Collection[int]) -> list[Target]:
        """Other batches of this size and data, for `CANARIES` people if as many are left."""
        gallery = self.everybody
        if gallery is None or gallery.labels is None or self.captured is not None:
            return []
        order = Rng(0).fork("canary").permutation(len(gallery.inputs)).tolist()
        return self.take_canaries([number for number in order if number not in taken])

    def take_canaries(self, free: Sequence[int]) -> list[Target]:
        """Batches of this size of the first of these people, who have its labels if unlabelled."""
        gallery, size, own = self.everybody, len(self.people), self.require_batch().labels
        assert gallery is not None
        batches = min(math.ceil(CANARIES / size), len(free) // size)
        chosen = [sorted(free[i * size : (i + 1) * size]) for i in range(batches)]
        labels = [own if gallery.labels is None else gallery.labels[who] for who in chosen]
        return [
            replace(self, people=tuple(who), batch=Batch(gallery.inputs[who], known))
            for who, known in zip(chosen, labels, strict=True)
        ]


def _list_scores(scores: Scores) -> Plain:
    """One value per example; NaN, which JSON cannot hold, becomes None."""
    return {
        name: tuple(None if math.isnan(v) else v for v in values.tolist())
        for name, values in scores.values.items()
    }


def select_targets(
    dataset: Dataset,
    *,
    people: int | Sequence[int],
    batch_size: int,
    start: int | None = None,
    sample_seed: int = 0,
) -> tuple[Target, ...]:
    """Select batches of a data set to attack.

    People are drawn at random by default: only then do intervals speak of the whole data set. More
    people with the same seed include the fewer.

    Args:
        dataset: The data set.
        people: How many examples to draw at random, or their numbers.
        batch_size: How many share an update.
        start: Take people in order from this number on, instead of at random.
        sample_seed: Of the random draw.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.load("photos")
        >>> [target.people for target in select_targets(photos, people=4, batch_size=2)]
        [(4, 10), (1, 9)]
        >>> [target.people for target in select_targets(photos, people=4, batch_size=2, start=0)]
        [(0, 1), (2, 3)]
    """
    counted = isinstance(people, int)
    if not isinstance(people, int | Sequence) or isinstance(people, bool | str):
        raise InvalidValue(f"expected people >= 1, or a list of their numbers, got {people!r}")
    if not counted and start is not None:
        raise InvalidValue(f"expected people by number or a start, got {people} and {start}")
    if sample_seed and (start is not None or not counted):
        raise InvalidValue(
            f"nobody is drawn at random here, got sample_seed={sample_seed}; leave it out, or "
            "give only the number of people"
        )
    if not isinstance(people, int):
        numbers, sampling = tuple(people), "by number"
    elif start is None:
        numbers, sampling = _draw_people(dataset, people, sample_seed), "at random"
    else:
        if start < 0 or start + people > len(dataset):
            raise InvalidValue(
                f"expected people among the {len(dataset)} of {dataset.name}, got {people} from "
                f"number {start} on"
            )
        numbers, sampling = tuple(range(start, start + people)), "in order"
    if not numbers or not all(type(number) is int for number in numbers):
        raise InvalidValue(f"expected people >= 1, or a list of their numbers, got {people!r}")
    require_at_least(1, batch_size=batch_size)
    if len(numbers) % batch_size:
        raise InvalidValue(
            f"expected people to be a multiple of batch_size, got {len(numbers)} people in batches "
            f"of {batch_size}"
        )
    if len(set(numbers)) < len(numbers):
        raise InvalidValue(f"expected different people, got {list(numbers)}")
    cuts = [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
    if dataset not in _GALLERIES:
        _GALLERIES[dataset] = Gallery(dataset.inputs, dataset.labels, dataset.domain)
    gallery = _GALLERIES[dataset]
    return tuple(replace(_select_target(dataset, gallery, cut), sampling=sampling) for cut in cuts)


def _draw_people(dataset: Dataset, count: int, seed: int) -> tuple[int, ...]:
    if count > len(dataset):
        raise InvalidValue(
            f"expected at most the {len(dataset)} people of {dataset.name}, got {count}; attack "
            "fewer, by people = or --people"
        )
    order = Rng(seed).fork("people").permutation(len(dataset))
    return tuple(order[: max(count, 0)].tolist())


def _select_target(dataset: Dataset, gallery: Gallery, people: tuple[int, ...]) -> Target:
    first, size = people[0], len(people)
    in_a_row = people == tuple(range(first, first + size))
    batch = dataset.batch(size, start=first) if in_a_row else dataset.take(people)
    if len(dataset) < 2 * size:
        raise InvalidValue(
            f"expected {2 * size} people or more in {dataset.name}, got {len(dataset)}, too few to "
            f"compare {size} {'people' if size > 1 else 'person'} with others; "
            + "use a smaller batch_size, or " * (size > 1)
            + "add inputs of others"
        )
    domain = dataset.domain
    return Target(
        dataset.name, people, batch, gallery, domain.bounds, dataset.digest, domain=domain
    )
