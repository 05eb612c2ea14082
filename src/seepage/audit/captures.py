"""Data of a spec that is a captured update: `data = { capture = "...", truth = "..." }`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from seepage.audit.targets import CapturedUpdate, Strangers, Victims
from seepage.capture import Form, load
from seepage.capture.capture_file import read_file, read_tensors
from seepage.core import Batch, Domain, Rng
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue, UnreadableFile
from seepage.data import load as load_data

# Guesses without an update are made from noise, since nobody else's data is at hand.
_POOL = 64


@dataclass(frozen=True, eq=False)
class CapturedData:
    """A captured update with what is known of the data behind it.

    Args:
        name: What records call the data.
        tapped: What the adversary holds.
        domain: The space of the inputs.
        truth: The private batch, which nothing but scoring opens; None if nobody has it.
    """

    name: str
    tapped: CapturedUpdate
    domain: Domain
    truth: Batch | None = None

    @property
    def classes(self) -> int | None:
        """The network knows."""
        return None

    @cached_property
    def victims(self) -> Victims | Strangers:
        """Whom the audit is about."""
        if self.truth is None:
            return Strangers(self.name, self.tapped)
        noise = self.domain.sample(max(_POOL, len(self.truth)), rng=Rng(0))
        return Victims(
            data=self.name,
            people=tuple(range(len(self.truth))),
            batch=self.truth,
            everybody=torch.cat([self.truth.inputs.to(noise), noise]),
            bounds=self.domain.bounds,
            source=digest(self.tapped.digest),
            tapped=self.tapped,
            domain=self.domain,
        )

    def take(self, indices: Sequence[int]) -> Batch:
        """Inputs of the right kind, to find out which metrics fit them."""
        labels = torch.zeros(len(indices), dtype=torch.long)
        return Batch(self.domain.sample(len(indices), rng=Rng(0)), labels)


def captured(
    *,
    capture: str,
    name: str | None = None,
    truth: str | None = None,
    labels: Sequence[int] | None = None,
    form: Form | None = None,
    shape: Sequence[int] | None = None,
    batch_size: int | None = None,
) -> CapturedData:
    """Read a captured update and, if there is one, the truth beside it.

    Args:
        capture: The file, as `sp.capture.save` writes it.
        name: What records call it; that of the file if not given.
        truth: A file of inputs and labels: `.safetensors`, or `.npz`.
        labels: Those of the batch, where the adversary knows them.
        form: What the update is, in spite of what the file says.
        shape: Of one input, where the file does not say.
        batch_size: Number of inputs, where the file does not say.
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
    known = None if labels is None else torch.tensor(list(labels), dtype=torch.long)
    batch = None if truth is None else _read_truth(Path(truth), domain)
    return CapturedData(name or Path(capture).name, CapturedUpdate(held, known), domain, batch)


def _read_truth(path: Path, domain: Domain) -> Batch:
    """The private batch, for scoring alone.

    Args:
        path: A `.safetensors` file with `inputs` and `labels`, or an `.npz` archive.
        domain: What its inputs must be.
    """
    if path.suffix == ".npz":
        dataset = load_data(f"npz:{path}")
        batch = dataset.batch(len(dataset))
    else:
        tensors = _tensors(path)
        if set(tensors) != {"inputs", "labels"}:
            raise UnreadableFile(
                f"expected the tensors inputs and labels in {str(path)!r}, got "
                f"{', '.join(sorted(tensors)) or 'none'}"
            )
        batch = Batch(tensors["inputs"].float(), tensors["labels"])
    domain.check(batch.inputs)
    return batch


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(read_file(path, what="truth"))[0]
    except UnreadableFile as error:
        raise UnreadableFile(f"{str(path)!r} cannot be read: {error}") from None
