"""What the adversary sees. Nothing else reaches an attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from seepage.core.lesson import Mixing
from seepage.core.task import Task
from seepage.core.update import Update


class Simulate(Protocol):
    """The adversary's own run of the client: `(inputs, labels) -> Update`."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> Update:
        """Return the update the client would share, as far as the adversary can tell."""


@dataclass(frozen=True)
class Statistics:
    """Mean and (biased) variance that one batch-normalisation layer measured, each `(C,)`."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class Observation:
    """The adversary's whole view; None means unknown.

    Made by `Threat.observe` and, of updates that crossed a wire, by `Capture.observation`.

    Args:
        task: The broadcast network, in the mode the client ran it.
        update: What the client shared.
        simulate: The client's computation, with the defense if the adversary knows it.
        batch_size: Number of inputs to search for.
        labels: Their labels, sorted: the order would be a hint that no server has.
        statistics: What each batch-normalisation layer measured on the batch.
        mixing: How the client mixed its inputs, where that is known. What is searched for is then
            the private inputs, one column for each label, and `simulate` mixes them; only where
            signs were flipped it is the encodings, one row for each label.
    """

    task: Task
    update: Update
    simulate: Simulate
    batch_size: int | None = None
    labels: Tensor | None = None
    statistics: Mapping[str, Statistics] | None = None
    mixing: Mixing | None = None
