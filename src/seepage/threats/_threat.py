"""The threat model: the only door between a client and an adversary."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from seepage.clients._gradient import batch_statistics
from seepage.core import Batch, Mixing, Observation, PreparedBatch, Rng, Statistics, Task, Update
from seepage.core._chain import chain
from seepage.core._client import Client, SharedUpdate
from seepage.core._device import precision, upcast
from seepage.core._task import Mode
from seepage.core.errors import InvalidValue
from seepage.defenses._mixing import mix


@dataclass(frozen=True, eq=False)
class _SearchTarget:
    """What the adversary searches for: the private inputs or, if data was mixed, the encodings.

    Args:
        labels: Labels of the target, sorted.
        mixing: What is known of the mixing, one row per label for encodings, one column per label
            for private inputs.
        simulated: The mixing that a simulation must apply to private inputs.
    """

    labels: Tensor
    mixing: Mixing | None = None
    simulated: Mixing | None = None


def _choose_target(shared: SharedUpdate, batch: Batch, *, knows_mixing: bool) -> _SearchTarget:
    """Choose the private inputs if the client's mixing can be simulated, else the encodings.

    Signs that were flipped at random are never known, so the target is then the encodings.
    """
    mixing = _join_mixings(shared) if knows_mixing else None
    if mixing is not None and mixing.flipped_about is None:
        order = sort_labels(batch.labels)
        aligned = replace(mixing, coefficients=mixing.coefficients[:, order])
        return _SearchTarget(batch.labels[order], aligned, simulated=aligned)
    labels = torch.cat([prepared.target.labels for prepared in shared.prepared_batches])
    order = sort_labels(labels)
    if mixing is not None:
        mixing = replace(mixing, coefficients=mixing.coefficients[order])
    return _SearchTarget(labels[order], mixing)


def sort_labels(labels: Tensor) -> Tensor:
    """Return the order that sorts labels; it says nothing about the order of the inputs."""
    if labels.ndim == 1:
        return labels.argsort(stable=True)
    rows = sorted(range(len(labels)), key=lambda row: labels[row].tolist())
    return torch.tensor(rows, device=labels.device)


def _join_mixings(shared: SharedUpdate) -> Mixing | None:
    """Join the mixings of all clients into one."""
    known = [prepared.mixing for prepared in shared.prepared_batches if prepared.mixing is not None]
    if not known:
        return None
    joined: Tensor = torch.block_diag(*(m.coefficients for m in known))  # type: ignore[no-untyped-call]
    return replace(known[0], coefficients=joined)


@dataclass(frozen=True, eq=False)
class Simulation:
    """What the client would share for a candidate, as far as the adversary knows the client.

    Args:
        client: The client, with its defense as far as it is known.
        task: The broadcast network.
        mixing: How the client mixed its data, if candidates are the data before mixing.
    """

    client: Client
    task: Task
    mixing: Mixing | None = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> Update:
        """Run the client's own code without its randomness, differentiable in the inputs."""
        batch = self._mix(Batch(inputs, labels))
        return self.client.expected(self.task, batch.inputs, batch.labels)

    def trained_on(self, inputs: Tensor) -> Tensor:
        """The inputs on which a client would run the network for this candidate."""
        unlabelled = self.task.blank_labels(len(inputs))
        plain = PreparedBatch.undefended(self.task, self._mix(Batch(inputs, unlabelled)))
        return self.client.chain.prepare_expected(plain).batch.inputs

    def with_client(self, client: Client) -> Simulation:
        """Return the simulation of another client."""
        return replace(self, client=client)

    def with_task(self, task: Task) -> Simulation:
        """Return the simulation with another network."""
        return replace(self, task=task)

    def with_mixing(self, mixing: Mixing | None) -> Simulation:
        """Return the simulation with another mixing."""
        return replace(self, mixing=mixing)

    def _mix(self, batch: Batch) -> Batch:
        if self.mixing is None:
            return batch
        return mix(batch, self.mixing, classes=self.task.classes)


BatchNorm = Literal["exact", "running", "unknown"]
Server = Literal["honest", "malicious"]


@dataclass(frozen=True, kw_only=True)
class Threat:
    """What the server knows besides the update it receives, and whether it plays by the rules.

    Args:
        knows_labels: The labels, sorted. If the server does not know how data was mixed, these are
            the mixed labels.
        knows_batch_size: The number of examples in the batch.
        knows_defense: The defense, so that its deterministic part is simulated.
        batchnorm: "running": the client normalises with the broadcast statistics. "exact": it
            normalises with its batch's statistics, and the server knows them. "unknown": it
            normalises with its batch's statistics, and the server does not know them.
        knows_mixing: Which examples were mixed, and with what weights; never the flipped signs.
        server: "honest": it follows the protocol but is curious. "malicious": it may send any
            network, as an `ActiveAttack` needs.
        rounds: How many updates of the same batch the server sees. The client draws its randomness
            anew in each, and the network is the same. An audit takes attacks that use all of them.

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
    rounds: int = 1

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
        if self.batchnorm not in ("exact", "running", "unknown"):
            raise InvalidValue(
                f"expected batchnorm 'exact', 'running' or 'unknown', got {self.batchnorm!r}"
            )
        if self.server not in ("honest", "malicious"):
            raise InvalidValue(f"expected server 'honest' or 'malicious', got {self.server!r}")
        if self.rounds < 1:
            raise InvalidValue(f"expected one round or more, got rounds = {self.rounds!r}")
        if self.knows_labels and not self.knows_batch_size:
            raise InvalidValue("knowing the labels includes the batch size; set knows_batch_size")
        if self.knows_mixing and not self.knows_defense:
            raise InvalidValue("knowing the mixing includes the defense; set knows_defense")
        if self.knows_mixing and not self.knows_batch_size:
            raise InvalidValue(
                "the mixing has a weight for every example, so knowing it includes the batch size; "
                "set knows_batch_size"
            )

    def forget_defense(self) -> Threat:
        """Return the same server without knowledge of the defense and its mixing."""
        return replace(self, knows_defense=False, knows_mixing=False)

    def unaware(self) -> Threat:
        """Old name of `forget_defense`, kept for one release."""
        warnings.warn("unaware is now forget_defense", DeprecationWarning, stacklevel=2)
        return self.forget_defense()

    @property
    def mode(self) -> Mode:
        """How the client runs the network: "eval" if it uses the broadcast statistics."""
        return "eval" if self.batchnorm == "running" else "train"

    @classmethod
    def of(cls, seen: Observation) -> Threat:
        """What an observation grants, so that an adversary can make more of its kind."""
        running: BatchNorm = "unknown" if seen.task.mode == "train" else "running"
        return cls(
            knows_labels=seen.labels is not None,
            knows_batch_size=seen.batch_size is not None or seen.labels is not None,
            batchnorm=running if seen.statistics is None else "exact",
            knows_mixing=seen.mixing is not None,
            rounds=1 + len(seen.others),
        )

    def observe(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Observation:
        """Let the client share its update, and return what the adversary sees.

        The client computes in the precision of the network. Below float32, the adversary gets the
        same numbers in float32, and simulates the client in float32.

        Args:
            client: The client that shares.
            task: The network, before the client's defense changes it.
            batch: The private batch; only what this threat grants enters the result.
            rng: The client's randomness; the adversary has another key.
        """
        broadcast = client.broadcast(task.in_mode(self.mode))
        return self.observe_broadcast(client, broadcast, batch, rng=rng)

    def observe_broadcast(
        self, client: Client, task: Task, batch: Batch, *, rng: Rng
    ) -> Observation:
        """The same on a network that was broadcast already, in the mode the client runs it."""
        keys = (rng.fork("round", number) for number in range(1, self.rounds))
        others = tuple(self._observe_round(client, task, batch, rng=key) for key in keys)
        return replace(self._observe_round(client, task, batch, rng=rng), others=others)

    def _observe_round(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Observation:
        # In full precision: rounding by a GPU would hide what other adversaries see.
        with precision("float32"):
            shared = client.share(task, batch, rng=rng)
            statistics = self._statistics(client, shared)
        known = client if self.knows_defense else replace(client, defense=chain())
        target = _choose_target(shared, batch, knows_mixing=self.knows_mixing)
        seen = task.upcast()
        return Observation(
            task=seen,
            update=shared.update,
            simulate=Simulation(known, seen, target.simulated),
            batch_size=len(target.labels) if self.knows_batch_size else None,
            labels=upcast(target.labels) if self.knows_labels else None,
            statistics=statistics,
            mixing=target.mixing,
        )

    def _statistics(self, client: Client, shared: SharedUpdate) -> Mapping[str, Statistics] | None:
        if self.batchnorm != "exact":
            return None
        if len(shared.prepared_batches) > 1:
            raise InvalidValue(
                f"batchnorm='exact' needs a single client, but {client.defense} aggregates "
                f"{len(shared.prepared_batches)}; use 'running' or 'unknown'"
            )
        (prepared,) = shared.prepared_batches
        with torch.no_grad():
            return batch_statistics(prepared.task, prepared.batch.inputs)
