"""Whose data is attacked: batches of a data set, or the batch behind a captured update."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from seepage.capture.capture import Capture, Form
from seepage.capture.capture_file import load, read_file, read_tensors
from seepage.core import Batch, Domain, Metric, Observation, Protection, Reconstruction, Rng, Task
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue, UnreadableFile
from seepage.core.task import describe_inputs
from seepage.data.dataset import Dataset
from seepage.data.load import load as load_data
from seepage.defenses.chain import chain
from seepage.rehearsal.public_data import PublicData
from seepage.scoring import Scores, baseline_scores, score
from seepage.scoring.identification import Gallery, Identification, identify
from seepage.threats.threat import Threat

# People on whom an attack without the defense is tried: one alone may be unusually hard or easy.
CANARIES = 3
# Baselines for a capture guess noise, since no other data is at hand.
_POOL = 64
# Public people that an attack may rehearse on, at most.
_PUBLIC = 200

Plain = Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, eq=False)
class CapturedUpdate:
    """What the adversary got hold of.

    Args:
        capture: The update, as it crossed the wire.
        labels: Those of the batch, if the adversary knows them.
    """

    capture: Capture
    labels: Tensor | None = None

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


@dataclass(frozen=True, eq=False)
class _ScoredGuess:
    """A guess `(B, ...)` in the order of the examples, with scores if the truth is known."""

    people: tuple[int, ...]
    guess: Tensor
    scores: Plain = field(default_factory=dict)
    baselines: Mapping[str, Plain] = field(default_factory=dict)
    identification: tuple[Identification, ...] = ()


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
    """

    data: str
    people: tuple[int, ...]
    batch: Batch | None = None
    everybody: Gallery | None = None
    bounds: tuple[float, float] = (0.0, 1.0)
    source: str = ""
    captured: CapturedUpdate | None = None
    domain: Domain | None = None

    @classmethod
    def unknown(cls, data: str, captured: CapturedUpdate) -> Target:
        """The batch behind a captured update, of which nothing else is known."""
        labels, size = captured.labels, captured.capture.setting.batch_size
        people = tuple(range(size or (1 if labels is None else len(labels))))
        return cls(data, people, captured=captured)

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
        return self.everybody.inputs[self._is_other]

    @property
    def _pool_labels(self) -> Tensor | None:
        labels = None if self.everybody is None else self.everybody.labels
        return None if labels is None else labels[self._is_other]

    @property
    def _is_other(self) -> Tensor:
        assert self.everybody is not None
        others = torch.ones(len(self.everybody.inputs), dtype=torch.bool)
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
        self,
        guess: Reconstruction,
        *,
        metrics: Sequence[Metric] | None,
        labels_known: bool = True,
        rng: Rng,
    ) -> _ScoredGuess:
        """Score a guess and the baselines, in the units of the data set; no truth, no scores."""
        if self.batch is None:
            return _ScoredGuess(tuple(range(len(guess.inputs))), guess.inputs)
        low, high = self.bounds
        peak, domain = high - low, self.domain
        scores = score(guess, self.batch, metrics=metrics, low=low, peak=peak, domain=domain)
        trivial = baseline_scores(
            self.batch,
            pool=self.pool,
            labels=self._pool_labels if labels_known or guess.labels is not None else None,
            metrics=scores.metrics,
            rng=rng,
            low=low,
            peak=peak,
            domain=domain,
        )
        baselines = {name: _list_scores(scored) for name, scored in trivial.items()}
        found = self.identify(guess, labels_known=labels_known)
        return _ScoredGuess(
            self.people, scores.paired.guess, _list_scores(scores), baselines, found
        )

    def identify(
        self, guess: Reconstruction, *, labels_known: bool, without: Collection[int] = ()
    ) -> tuple[Identification, ...]:
        """Look for each person in a guess.

        Args:
            guess: Of this batch, or of another one as a negative control.
            labels_known: Whether the adversary knows the labels.
            without: More people of the data set who are no strangers.
        """
        if self.everybody is None or len(guess.inputs) == 0:
            return ()
        return identify(
            guess.inputs,
            self.require_batch(),
            self.everybody,
            without={*self.people, *without},
            labels_known=labels_known or guess.labels is not None,
        )

    @property
    def label_chance(self) -> float | None:
        """How often a guess of the most frequent label would be right; None if not known."""
        labels = None if self.everybody is None else self.everybody.labels
        if labels is None or labels.is_floating_point():
            return None
        return float(torch.bincount(labels).max()) / len(labels)

    def choose_public(self, taken: Collection[int]) -> PublicData | None:
        """People of the same data whom nobody attacks, nor anybody with the same inputs.

        Args:
            taken: Numbers of the people who are attacked.
        """
        gallery = self.everybody
        if gallery is None or gallery.synthetic:
            return None
        if self.captured is not None:
            # The truth of a capture stands first, if there is one, and must not change the choice.
            first = 0 if self.batch is None else len(self.people)
            rows = Rng(0).fork("public").permutation(len(gallery.inputs) - first)[:_PUBLIC]
            chosen = (rows + first).tolist()
        else:
            private = {digest(gallery.inputs[number]) for number in taken}
            order = Rng(0).fork("public").permutation(len(gallery.inputs)).tolist()
            free = [number for number in order if number not in taken][:_PUBLIC]
            chosen = [number for number in free if digest(gallery.inputs[number]) not in private]
        if not chosen:
            return None
        labels = None if gallery.labels is None else gallery.labels[chosen]
        return PublicData(gallery.inputs[chosen], labels)

    def choose_canaries(self, taken: Collection[int]) -> list[Target]:
        """Other batches of this size from the same data, whose inputs the audit may know.

        As many as hold `CANARIES` people, or as the data has people left for.

        Args:
            taken: Numbers of the people who are attacked.
        """
        gallery, size = self.everybody, len(self.people)
        if gallery is None or gallery.labels is None or self.captured is not None:
            return []
        order = Rng(0).fork("canary").permutation(len(gallery.inputs)).tolist()
        free = [number for number in order if number not in taken]
        batches = min(math.ceil(CANARIES / size), len(free) // size)
        chosen = [tuple(sorted(free[i * size : (i + 1) * size])) for i in range(batches)]
        return [
            replace(self, people=who, batch=Batch(gallery.inputs[[*who]], gallery.labels[[*who]]))
            for who in chosen
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

    Intervals over people speak of the whole data set only if the people are drawn at random, so
    that is the default. More people with the same seed include the fewer.

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
    if not counted and start is not None:
        raise InvalidValue(f"expected people by number or a start, got {people} and {start}")
    if sample_seed and (start is not None or not counted):
        raise InvalidValue(
            f"nobody is drawn at random here, got sample_seed={sample_seed}; leave it out, or "
            "give only the number of people"
        )
    if not isinstance(people, int):
        numbers = tuple(people)
    elif start is None:
        numbers = _draw_people(dataset, people, sample_seed)
    else:
        numbers = tuple(range(start, start + people))
    if not numbers or not all(type(number) is int for number in numbers):
        raise InvalidValue(f"expected people >= 1, or a list of their numbers, got {people!r}")
    if batch_size < 1:
        raise InvalidValue(f"expected batch_size >= 1, got {batch_size!r}")
    if len(numbers) % batch_size:
        raise InvalidValue(
            f"expected people to be a multiple of batch_size, got {len(numbers)} people in batches "
            f"of {batch_size}"
        )
    if len(set(numbers)) < len(numbers):
        raise InvalidValue(f"expected different people, got {list(numbers)}")
    cuts = [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
    gallery = _share_gallery(dataset)
    return tuple(_select_target(dataset, gallery, cut) for cut in cuts)


def _draw_people(dataset: Dataset, count: int, seed: int) -> tuple[int, ...]:
    if count > len(dataset):
        raise InvalidValue(
            f"expected at most the {len(dataset)} people of {dataset.name}, got {count}"
        )
    order = Rng(seed).fork("people").permutation(len(dataset))
    return tuple(order[: max(count, 0)].tolist())


_GALLERIES: WeakKeyDictionary[Dataset, Gallery] = WeakKeyDictionary()


def _share_gallery(dataset: Dataset) -> Gallery:
    """One gallery for all batches of a data set, so that strangers are prepared once."""
    if dataset not in _GALLERIES:
        _GALLERIES[dataset] = Gallery(dataset.inputs, dataset.labels, dataset.domain)
    return _GALLERIES[dataset]


def _select_target(dataset: Dataset, gallery: Gallery, people: tuple[int, ...]) -> Target:
    first, size = people[0], len(people)
    in_a_row = people == tuple(range(first, first + size))
    batch = dataset.batch(size, start=first) if in_a_row else dataset.take(people)
    if len(dataset) < 2 * size:
        raise InvalidValue(
            f"{dataset.name} has {len(dataset)} examples, too few to compare {size} people "
            "with others; use a smaller batch_size"
        )
    domain = dataset.domain
    return Target(
        dataset.name, people, batch, gallery, domain.bounds, dataset.digest, domain=domain
    )


@dataclass(frozen=True, eq=False)
class CapturedData:
    """Data of a spec that is a captured update, with what is known of the batch behind it.

    Args:
        name: What records call the data.
        captured: What the adversary holds.
        domain: The space of the inputs.
        truth: The private batch, used for scoring alone; None if nobody has it.
        public: People of the same kind: strangers to tell the truth from, and to rehearse on.
    """

    name: str
    captured: CapturedUpdate
    domain: Domain
    truth: Batch | None = None
    public: Dataset | None = None
    # The network tells the number of classes.
    classes: None = field(default=None, init=False)

    @cached_property
    def target(self) -> Target:
        """What the audit attacks."""
        if self.truth is None:
            public = self.public
            gallery = None if public is None else Gallery(public.inputs, public.labels, self.domain)
            return replace(Target.unknown(self.name, self.captured), everybody=gallery)
        return Target(
            data=self.name,
            people=tuple(range(len(self.truth))),
            batch=self.truth,
            everybody=self._gather(self.truth),
            bounds=self.domain.bounds,
            source=digest(self.captured.digest),
            captured=self.captured,
            domain=self.domain,
        )

    def _gather(self, truth: Batch) -> Gallery:
        """The private batch, then public people, or noise where there are none."""
        if self.public is None:
            noise = self.domain.sample(max(_POOL, len(truth)), rng=Rng(0))
            inputs = torch.cat([truth.inputs.to(noise), noise])
            return Gallery(inputs, domain=self.domain, synthetic=True)
        inputs = torch.cat([truth.inputs.to(self.public.inputs), self.public.inputs])
        labels = torch.cat([truth.labels, self.public.labels])
        return Gallery(inputs, labels, self.domain)

    def take(self, indices: Sequence[int]) -> Batch:
        """Return random inputs of the right kind, to find out which metrics fit them."""
        labels = torch.zeros(len(indices), dtype=torch.long)
        return Batch(self.domain.sample(len(indices), rng=Rng(0)), labels)


def read_capture(
    *,
    capture: str,
    name: str | None = None,
    truth: str | None = None,
    labels: Sequence[int] | None = None,
    form: Form | None = None,
    shape: Sequence[int] | None = None,
    batch_size: int | None = None,
    public: str | None = None,
) -> CapturedData:
    """Read a captured update and, if there is one, the truth beside it.

    Args:
        capture: The file, as `sp.capture.save` writes it.
        name: What records call it; the name of the file by default.
        truth: A file of inputs and labels: `.safetensors`, or `.npz`.
        labels: Those of the batch, if the adversary knows them.
        form: What the update is, in spite of what the file says.
        shape: Of one input, if the file does not say.
        batch_size: Number of inputs, if the file does not say.
        public: A data set of the same kind as the private data.
    """
    held = load(capture)
    setting = held.setting
    if shape is not None:
        setting = replace(setting, shape=tuple(shape))
    if batch_size is not None:
        setting = replace(setting, batch_size=batch_size)
    held = replace(held, setting=setting, form=form or held.form)
    domain = setting.domain
    if domain is None:
        raise InvalidValue(
            f"{capture} does not say what an input looks like; give its shape, such as 3x32x32"
        )
    if labels is not None and not all(0 <= label < 2**31 for label in labels):
        raise InvalidValue("expected labels as class numbers from 0, got others")
    known = None if labels is None else torch.tensor(list(labels), dtype=torch.long)
    batch = None if truth is None else _read_truth(Path(truth), domain)
    people = None if public is None else _read_public(public, domain)
    captured = CapturedUpdate(held, known)
    return CapturedData(name or Path(capture).name, captured, domain, batch, people)


def _read_public(name: str, domain: Domain) -> Dataset:
    dataset = load_data(name)
    if tuple(dataset.domain.shape) != tuple(domain.shape):
        raise InvalidValue(
            f"expected public data of shape {tuple(domain.shape)}, as the capture, got {name} of "
            f"{tuple(dataset.domain.shape)}"
        )
    domain.check(dataset.inputs[:1])
    return dataset


def _read_truth(path: Path, domain: Domain) -> Batch:
    """Read the private batch from an `.npz` file, or from `.safetensors` with inputs and labels."""
    if path.suffix == ".npz":
        dataset = load_data(f"npz:{path}")
        batch = dataset.batch(len(dataset))
    else:
        try:
            tensors = read_tensors(read_file(path, what="truth"))[0]
        except UnreadableFile as error:
            raise UnreadableFile(f"{str(path)!r} cannot be read: {error}") from None
        if set(tensors) != {"inputs", "labels"}:
            raise UnreadableFile(
                f"expected the tensors inputs and labels in {str(path)!r}, got "
                f"{', '.join(sorted(tensors)) or 'none'}"
            )
        batch = Batch(tensors["inputs"].float(), tensors["labels"])
    domain.check(batch.inputs)
    return batch
