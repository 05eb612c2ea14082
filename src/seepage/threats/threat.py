"""The threat model: the only door between a client and an adversary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from seepage.clients.client import Client, SharedUpdate
from seepage.clients.gradient import batch_statistics
from seepage.core import Batch, Mixing, Observation, PreparedBatch, Rng, Statistics, Task, Update
from seepage.core.device import precision, upcast
from seepage.core.errors import InvalidValue
from seepage.core.task import Mode
from seepage.defenses.chain import chain
from seepage.defenses.mixing import mix


@dataclass(frozen=True, eq=False)
class _Goal:
    """What is searched for.

    Args:
        labels: Of what is searched for, sorted.
        mixing: What is known of the mixing: where encodings are searched for, with one row for each
            label; where private inputs are, with one column for each.
        simulated: The same, where private inputs are searched for and have to be mixed first.
    """

    labels: Tensor
    mixing: Mixing | None = None
    simulated: Mixing | None = None


def _goal(shared: SharedUpdate, batch: Batch, *, knows_mixing: bool) -> _Goal:
    """Private inputs where their way into the update can be simulated, else the encodings.

    Signs that were flipped at random are never known, so behind them it is the encodings.
    """
    mixing = _mixing(shared) if knows_mixing else None
    if mixing is not None and mixing.flipped_about is None:
        order = _order(batch.labels)
        aligned = replace(mixing, coefficients=mixing.coefficients[:, order])
        return _Goal(batch.labels[order], aligned, simulated=aligned)
    labels = torch.cat([prepared.target.labels for prepared in shared.prepared_batches])
    order = _order(labels)
    if mixing is not None:
        mixing = replace(mixing, coefficients=mixing.coefficients[order])
    return _Goal(labels[order], mixing)


def _order(labels: Tensor) -> Tensor:
    """The order that sorts labels, so that it says nothing about the order of the inputs."""
    if labels.ndim == 1:
        return labels.argsort(stable=True)
    rows = sorted(range(len(labels)), key=lambda row: labels[row].tolist())
    return torch.tensor(rows, device=labels.device)


def _mixing(shared: SharedUpdate) -> Mixing | None:
    """The mixing of all the clients' data."""
    known = [prepared.mixing for prepared in shared.prepared_batches if prepared.mixing is not None]
    if not known:
        return None
    parts = (mixing.coefficients for mixing in known)
    whole: Tensor = torch.block_diag(*parts)  # type: ignore[no-untyped-call]
    return replace(known[0], coefficients=whole)


@dataclass(frozen=True, eq=False)
class Simulation:
    """What the client would share for a candidate, as far as the adversary knows the client.

    Args:
        client: The client, with what is known of its defense.
        task: What was broadcast.
        mixing: How the client mixed its data, if the candidate stands for the data before that.
    """

    client: Client
    task: Task
    mixing: Mixing | None = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> Update:
        """Run the client's own code without its randomness, differentiable in the inputs."""
        batch = self._mixed(Batch(inputs, labels))
        return self.client.expected(self.task, batch.inputs, batch.labels)

    def trained_on(self, inputs: Tensor) -> Tensor:
        """What one client would run the network on for this candidate."""
        unlabelled = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
        batch = self._mixed(Batch(inputs, unlabelled))
        return self.client.chain.prepare_expected(
            PreparedBatch.plain(self.task, batch)
        ).batch.inputs

    def with_client(self, client: Client) -> Simulation:
        """Return the simulation of another client."""
        return replace(self, client=client)

    def with_task(self, task: Task) -> Simulation:
        """Return the simulation with another network."""
        return replace(self, task=task)

    def with_mixing(self, mixing: Mixing | None) -> Simulation:
        """Return the simulation with another mixing."""
        return replace(self, mixing=mixing)

    def _mixed(self, batch: Batch) -> Batch:
        if self.mixing is None:
            return batch
        return mix(batch, self.mixing, classes=self.task.classes)


BatchNorm = Literal["exact", "running", "unknown"]
Server = Literal["honest", "malicious"]


@dataclass(frozen=True, kw_only=True)
class Threat:
    """What the server knows besides the update it receives, and whether it plays by the rules.

    Args:
        knows_labels: The labels as a multiset: they are handed over sorted. Of data that was mixed
            in a way the server does not know, these are the mixed ones.
        knows_batch_size: How many people are in the batch.
        knows_defense: The defense, so that its deterministic part is simulated.
        batchnorm: "running": the client normalises with the broadcast statistics. "exact": it
            normalises with its batch's statistics, and the server knows them. "unknown": it
            normalises with its batch's statistics, and the server does not.
        knows_mixing: Where data is mixed, who was mixed with whom and how much of each; never the
            flipped signs.
        server: "honest": it sends what it trains, and is curious. "malicious": it may send any
            network it likes, which attacks that plant (`ActiveAttack`) need.

    Example:
        >>> Threat.strongest().batchnorm, Threat.realistic().batchnorm
        ('exact', 'unknown')

    References:
        Huang et al., 2021, Sec. 3 (huang2021evaluating) on what batch statistics and labels are
        worth to the adversary
    """

    knows_labels: bool = False
    knows_batch_size: bool = True
    knows_defense: bool = True
    batchnorm: BatchNorm = "running"
    knows_mixing: bool = False
    server: Server = "honest"

    @classmethod
    def strongest(cls) -> Threat:
        """Knows labels, exact batch statistics and the mixing: the upper end of the ladder.

        References:
            Huang et al., 2021 (huang2021evaluating), "the strongest attack"
        """
        return cls(knows_labels=True, batchnorm="exact", knows_mixing=True)

    @classmethod
    def realistic(cls) -> Threat:
        """Knows labels, which can often be restored, but neither batch statistics nor mixing.

        References:
            Huang et al., 2021, Table 5 (huang2021evaluating), "a more realistic attack"
        """
        return cls(knows_labels=True, batchnorm="unknown")

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.batchnorm not in ("exact", "running", "unknown"):
            raise InvalidValue(
                f"expected batchnorm 'exact', 'running' or 'unknown', got {self.batchnorm!r}"
            )
        if self.server not in ("honest", "malicious"):
            raise InvalidValue(f"expected server 'honest' or 'malicious', got {self.server!r}")
        if self.knows_labels and not self.knows_batch_size:
            raise InvalidValue("knowing the labels includes the batch size; set knows_batch_size")
        if self.knows_mixing and not self.knows_defense:
            raise InvalidValue("knowing the mixing includes the defense; set knows_defense")

    def unaware(self) -> Threat:
        """The same server, did it not know the defense nor, as part of it, the mixing."""
        return replace(self, knows_defense=False, knows_mixing=False)

    @property
    def mode(self) -> Mode:
        """How the client runs the network: with the broadcast statistics, or its batch's."""
        return "eval" if self.batchnorm == "running" else "train"

    def observe(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Observation:
        """Let the client share its update, and return all the adversary sees of it.

        The client computes in the precision of the network. Where that is below float32, the
        adversary gets the same numbers in float32, and simulates the client in float32.

        Args:
            client: Who shares.
            task: What was broadcast.
            batch: What is private; nothing of it enters the result but what this threat grants.
            rng: The client's randomness; the adversary's is another.
        """
        task = client.broadcast(task.in_mode(self.mode))
        # In full precision: rounding by a GPU would hide from the adversary what others see.
        with precision("float32"):
            shared = client.share(task, batch, rng=rng)
            statistics = self._statistics(client, shared)
        known = client if self.knows_defense else replace(client, defense=chain())
        sought = _goal(shared, batch, knows_mixing=self.knows_mixing)
        seen = task.upcast()
        return Observation(
            task=seen,
            update=shared.update,
            simulate=Simulation(known, seen, sought.simulated),
            batch_size=len(sought.labels) if self.knows_batch_size else None,
            labels=upcast(sought.labels) if self.knows_labels else None,
            statistics=statistics,
            mixing=sought.mixing,
        )

    def _statistics(self, client: Client, shared: SharedUpdate) -> Mapping[str, Statistics] | None:
        if self.batchnorm != "exact":
            return None
        if len(shared.prepared_batches) > 1:
            raise InvalidValue(
                f"batchnorm='exact' is of one client, but {client.defense} aggregates "
                f"{len(shared.prepared_batches)}; use 'running' or 'unknown'"
            )
        (prepared,) = shared.prepared_batches
        with torch.no_grad():
            return batch_statistics(prepared.task, prepared.batch.inputs)
