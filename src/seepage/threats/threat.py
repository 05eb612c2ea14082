"""The threat model: the only door between a client and an adversary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from seepage.clients import Client, batch_statistics
from seepage.core import Batch, Observation, Rng, Statistics, Task
from seepage.core.errors import InvalidValue
from seepage.core.precision import precision
from seepage.defenses import chain
from seepage.threats.simulation import Simulation

BatchNorm = Literal["exact", "running", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Threat:
    """What an honest-but-curious server knows besides the update it receives.

    Args:
        knows_labels: The labels of the batch, as a multiset: they are handed over sorted.
        knows_batch_size: How many people are in the batch.
        knows_defense: The defense, so that its deterministic part is simulated.
        batchnorm: "running": the client normalises with the broadcast statistics. "exact": it
            normalises with its batch's statistics, and the server knows them. "unknown": it
            normalises with its batch's statistics, and the server does not.

    Example:
        >>> Threat(knows_labels=True).batchnorm
        'running'

    References:
        Huang et al., 2021, Sec. 3 (huang2021evaluating) on what batch statistics and labels are
        worth to the adversary
    """

    knows_labels: bool = False
    knows_batch_size: bool = True
    knows_defense: bool = True
    batchnorm: BatchNorm = "running"

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.batchnorm not in ("exact", "running", "unknown"):
            raise InvalidValue(
                f"expected batchnorm 'exact', 'running' or 'unknown', got {self.batchnorm!r}"
            )
        if self.knows_labels and not self.knows_batch_size:
            raise InvalidValue("knowing the labels includes the batch size; set knows_batch_size")

    def observe(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Observation:
        """Let the client share its update, and return all the adversary sees of it.

        Args:
            client: Who shares.
            task: What was broadcast.
            batch: What is private; nothing of it enters the result but what this threat grants.
            rng: The client's randomness; the adversary's is another.
        """
        task = task.in_mode("eval" if self.batchnorm == "running" else "train")
        # In full precision: rounding by a card would hide from the adversary what others see.
        with precision("float32"):
            update = client(task, batch, rng=rng)
            statistics = self._statistics(task, batch)
        known = client if self.knows_defense else replace(client, defense=chain())
        return Observation(
            task=task,
            update=update,
            simulate=Simulation(known, task),
            batch_size=len(batch) if self.knows_batch_size else None,
            labels=_without_order(batch.labels) if self.knows_labels else None,
            statistics=statistics,
        )

    def _statistics(self, task: Task, batch: Batch) -> Mapping[str, Statistics] | None:
        if self.batchnorm != "exact":
            return None
        with torch.no_grad():
            return batch_statistics(task, batch.inputs)


def _without_order(labels: Tensor) -> Tensor:
    """Sort labels, so that their order says nothing about the order of the inputs."""
    if labels.ndim == 1:
        return labels.sort().values
    order = sorted(range(len(labels)), key=lambda row: labels[row].tolist())
    return labels[torch.tensor(order, device=labels.device)]
