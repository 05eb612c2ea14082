"""The record of a case, which is an attack or a bound: plain data, one number per person."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from seepage.audit.artifacts import pack, unpack
from seepage.core.construct import Component
from seepage.core.protocols import Side

Defense = tuple[Component, ...]
# The prefix of the name of an attack that is run without its adaptation to the defense.
UNAWARE = "unaware "


@dataclass(frozen=True)
class Ceiling:
    """A bound on the error of attacks on one batch.

    Args:
        values: One per person; empty if the case failed.
        side: Whether the error is at least or at most this value.
        metric: The metric that is bounded.
        assumptions: Conditions under which the bound holds.
        remark: Why the bound says nothing; empty if it says something.
        peak: Width of the range of an entry, to which a PSNR is relative.
        entries: Number of entries of one input.
        mode: The mode in which the client ran the network, "train" or "eval".
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
        model: Name of the broadcast network.
        local: What the client computed.
        defense: What it did before sharing, one component per link of the chain; empty for no
            defense.
        threat: What the adversary knew; None for a bound.
        attack: The attack; for a bound, the bound.
        seed: Of all randomness.
        scores: Metric to one value per person; None where a value is not defined.
        baselines: The same for each guess that needs no update.
        certificate: Residual and uniqueness, if the attack gave them.
        effort: Steps, restarts, seconds and device.
        error: Why there is no result; None if there is one.
        case: The id of the case, a hash of everything that decides its result.
        truth: The name under which the private inputs are stored.
        vetted: How detectable the network is that the attack planted; empty if it planted none.
        bound: The values of a bound; None for an attack.
    """

    data: str
    people: tuple[int, ...]
    model: str
    local: Component
    defense: Defense
    threat: Component | None
    attack: Component
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
        """The record as data that JSON can hold; infinity becomes the word "inf"."""
        plain: dict[str, Any] = _replace_infinities(asdict(self))
        return {**plain, "batch_size": self.batch_size}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Record:
        """Read the record back from its plain form."""
        known = {field.name for field in fields(cls)}
        values = {key: _restore(value) for key, value in plain.items() if key in known}
        values["local"], values["attack"] = (Component(**values[k]) for k in ("local", "attack"))
        values["defense"] = tuple(Component(**link) for link in values["defense"])
        values["threat"] = Component(**values["threat"]) if values["threat"] else None
        values["bound"] = Ceiling(**values["bound"]) if values.get("bound") else None
        return cls(**values)


def _replace_infinities(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _replace_infinities(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_replace_infinities(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _restore(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _restore(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_restore(item) for item in value)
    return float(value) if value in ("inf", "-inf") else value


def pack_words(said: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """Write inputs in words as the metadata of an artifact."""
    return {"said": json.dumps(said)} if said else {}


def unpack_words(words: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Undo `pack_words`."""
    return tuple(tuple(map(str, one)) for one in json.loads(words.get("said", "[]")))


@dataclass(frozen=True, eq=False)
class Outcome:
    """A record with its tensors.

    Args:
        record: The result.
        truth: The private inputs; None if nobody has them.
        guess: The guesses in the order of the people; None if the case failed.
        objective: Value at the start and after each step; empty for closed forms.
        said: The guesses in words, for inputs that people read.
    """

    record: Record
    truth: Tensor | None
    guess: Tensor | None
    objective: tuple[float, ...] = ()
    said: tuple[tuple[str, ...], ...] = ()

    def pack(self) -> bytes:
        """Pack everything except the truth as safetensors, with the record in the metadata."""
        tensors = {} if self.guess is None else {"guess": self.guess}
        if self.objective:
            tensors["objective"] = torch.tensor(self.objective, dtype=torch.float64)
        record = json.dumps(self.record.plain(), allow_nan=False)
        return pack(tensors, {"record": record, **pack_words(self.said)})

    @classmethod
    def unpack(cls, data: bytes, truth: Tensor | None) -> Outcome:
        """Undo `pack`, adding the truth that it leaves out."""
        tensors, words = unpack(data)
        record = Record.from_plain(json.loads(words["record"]))
        objective = tensors["objective"].tolist() if "objective" in tensors else ()
        return cls(record, truth, tensors.get("guess"), tuple(objective), unpack_words(words))
