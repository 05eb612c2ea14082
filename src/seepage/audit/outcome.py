"""What a case gave, and its form between processes and on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.audit.artifacts import pack, unpack
from seepage.audit.record import Record


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
