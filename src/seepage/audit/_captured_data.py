"""A captured update as the data of a spec, with what is known of the batch behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from seepage.audit._record import Sent
from seepage.audit._targets import Target
from seepage.capture._capture import Capture, Form
from seepage.capture._capture_file import load, read_file, read_tensors
from seepage.core import Batch, Domain, Observation, Protection, Rng, Task
from seepage.core._chain import chain
from seepage.core._digest import digest
from seepage.core._whole_file import spell_path
from seepage.core.errors import InvalidValue, UnreadableFile
from seepage.data._dataset import Dataset
from seepage.data._load import load as load_data
from seepage.scoring._gallery import Gallery
from seepage.threats._threat import Threat

# Baselines for a capture guess noise, since no other data is at hand.
_POOL = 64


@dataclass(frozen=True, eq=False)
class CapturedUpdate:
    """What the adversary got hold of."""

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
        labels = None if self.labels is None else self.labels.to(task.reference.device)
        known = chain() if defense is None else defense
        return self.capture.observation(task, labels=labels, defense=known)

    def make_target(self, data: str) -> Target:
        """The batch behind it, of which nothing else is known."""
        size = self.capture.setting.batch_size
        people = tuple(range(size or (1 if self.labels is None else len(self.labels))))
        return Target(data, people, captured=self)


@dataclass(frozen=True, eq=False)
class CapturedData:
    """Data of a spec that is a captured update, with what is known of the batch behind it.

    Args:
        name: What records call the data.
        captured: What the adversary holds.
        domain: The space of the inputs.
        sent: By whom, and in which round.
        truth: The private batch, used for scoring alone; None if nobody has it.
        public: People of the same kind: strangers to tell the truth from, and inputs that an
            attack may use.
    """

    name: str
    captured: CapturedUpdate
    domain: Domain
    sent: Sent
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
            target = self.captured.make_target(self.name)
            return replace(target, everybody=gallery, sent=self.sent)
        return Target(
            data=self.name,
            people=tuple(range(len(self.truth))),
            batch=self.truth,
            everybody=self._gather(self.truth),
            bounds=self.domain.bounds,
            source=digest(self.captured.digest),
            captured=self.captured,
            domain=self.domain,
            sent=self.sent,
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
    """Read a captured update and, if it is known, the truth.

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
    if batch_size is not None and setting.batch_size not in (None, batch_size):
        raise InvalidValue(
            f"{capture} records a batch of {setting.batch_size}, but a batch size of {batch_size} "
            "is given; leave it out"
        )
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
    batch = None if truth is None else _read_truth(spell_path(truth), domain)
    if batch is not None and setting.batch_size not in (None, len(batch)):
        raise InvalidValue(
            f"expected the truth of {setting.batch_size} people, as the capture says, got that of "
            f"{len(batch)}"
        )
    people = None if public is None else _read_public(public, domain)
    captured = CapturedUpdate(held, known)
    sent = Sent(setting.client[:8] or Path(capture).stem, setting.round or 0)
    return CapturedData(name or Path(capture).name, captured, domain, sent, batch, people)


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


def find_same_people(targets: Sequence[Target]) -> list[Target]:
    """Tell who is behind several captured updates, so that reports count people once.

    Equal inputs of one client, or of updates without a client, are of one person, unless they are
    in one batch. Inputs that differ may still be of one person, which nobody can tell.
    """
    first: dict[tuple[str, str, int], tuple[str, int]] = {}
    found = []
    for target in targets:
        held = target.captured
        if isinstance(held, CapturedUpdate) and target.batch is not None:
            alike = Counter[str]()
            known_as = []
            for number, one in zip(target.people, target.batch.inputs, strict=True):
                same = digest(one)
                key = held.capture.setting.client, same, alike[same]
                known_as.append(first.setdefault(key, (target.data, number)))
                alike[same] += 1
            target = replace(target, known_as=tuple(known_as))
        found.append(target)
    return found
