"""What is kept of a case, an attack or a bound: plain data, one number per person."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from seepage.audit.artifacts import pack, unpack
from seepage.core.protocols import Side


@dataclass(frozen=True)
class Ceiling:
    """A bound on the error of attacks on one batch.

    Args:
        values: One per person; empty where the case failed.
        side: Whether the error is at least or at most this.
        metric: What is bounded.
        assumptions: Under which it holds.
        remark: Why it says nothing, where it does not; empty otherwise.
        peak: Width of the range of an entry, which a PSNR is relative to.
        entries: Of one input.
        mode: In which the client ran the network, "train" or "eval".
    """

    values: tuple[float, ...]
    side: Side
    metric: str
    assumptions: tuple[str, ...] = ()
    remark: str = ""
    peak: float = 1.0
    entries: int = 1
    mode: str = "eval"


@dataclass(frozen=True)
class Record:
    """The result of a case.

    Args:
        data: Name of the data set.
        people: Numbers of the people in the batch.
        model: The broadcast network.
        local: What the client computed.
        defense: What it did before sharing.
        threat: What the adversary knew; empty for a bound.
        attack: What it did; for a bound, its name.
        seed: Of all randomness.
        scores: Metric to one value per person; None where a value is not defined.
        baselines: The same for each guess that needs no update.
        certificate: Residual and uniqueness, where the attack gave them.
        effort: Steps, restarts, seconds and device.
        error: Why there is no result; None if there is one.
        case: The id of the case, a hash of everything that decides its result.
        truth: The name under which the private inputs are kept.
        vetted: What vetting says of the network an attack planted: how detectable it is; empty
            where nothing was planted.
        bound: What theory says, where the case is a bound; None where it is an attack.
    """

    data: str
    people: tuple[int, ...]
    model: str
    local: str
    defense: str
    threat: str
    attack: str
    seed: int
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, tuple[float | None, ...]]] = field(default_factory=dict)
    certificate: Mapping[str, float | bool | None] | None = None
    effort: Mapping[str, float | int | str] = field(default_factory=dict)
    error: str | None = None
    case: str = ""
    truth: str = ""
    vetted: str = ""
    bound: Ceiling | None = None

    @property
    def batch_size(self) -> int:
        """Number of people in the batch."""
        return len(self.people)

    def plain(self) -> dict[str, Any]:
        """The record as data that JSON can hold, where infinity is the word "inf"."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Record:
        """The record of which `plain` is the plain form."""
        known = {field.name for field in fields(cls)}
        values = {key: _restored(value) for key, value in plain.items() if key in known}
        ceiling = values.get("bound")
        return cls(**{**values, "bound": Ceiling(**ceiling) if ceiling else None})


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _restored(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_restored(item) for item in value)
    return float(value) if value in ("inf", "-inf") else value


def spelled(said: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """Inputs in words, as an artifact carries them."""
    return {"said": json.dumps(said)} if said else {}


def read_words(words: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Undo `spelled`."""
    return tuple(tuple(map(str, one)) for one in json.loads(words.get("said", "[]")))


@dataclass(frozen=True, eq=False)
class Outcome:
    """A record, with the tensors behind it.

    Args:
        record: What is kept.
        truth: The private inputs; None where nobody has them.
        guess: The guesses in the order of the people; None if the case failed.
        objective: Value at the start and after each step; empty for closed forms.
        said: The guesses in words, where people read them.
    """

    record: Record
    truth: Tensor | None
    guess: Tensor | None
    objective: tuple[float, ...] = ()
    said: tuple[tuple[str, ...], ...] = ()

    def packed(self) -> bytes:
        """All but the truth, as the bytes of the artifact: safetensors that carry the record."""
        tensors = {} if self.guess is None else {"guess": self.guess}
        if self.objective:
            tensors["objective"] = torch.tensor(self.objective, dtype=torch.float64)
        words = {"record": json.dumps(self.record.plain(), allow_nan=False), **spelled(self.said)}
        return pack(tensors, words)

    @classmethod
    def unpacked(cls, data: bytes, truth: Tensor | None) -> Outcome:
        """The outcome of which `data` is the packed form, with the truth it left out."""
        tensors, words = unpack(data)
        record = Record.from_plain(json.loads(words["record"]))
        objective = tensors["objective"].tolist() if "objective" in tensors else ()
        return cls(record, truth, tensors.get("guess"), tuple(objective), read_words(words))
