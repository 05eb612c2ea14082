"""The client: a local computation between the defenses before it and those after it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from seepage.core import Batch, LocalComputation, PreparedBatch, Protection, Rng, Task, Update
from seepage.core.device import upcast
from seepage.core.errors import InvalidValue
from seepage.core.rng import require_key
from seepage.defenses.chain import Chain, chain


@dataclass(frozen=True, eq=False)
class SharedUpdate:
    """What leaves a client, beside what it was made from; `Threat` decides who sees what.

    Args:
        update: What crosses the wire.
        prepared_batches: What was trained, and on what: one, or one for each client whose
            updates were aggregated.
    """

    update: Update
    prepared_batches: tuple[PreparedBatch, ...]


@dataclass(frozen=True)
class Client:
    """Computes on private data and shares only the defended update.

    The adversary's simulation runs `expected`, the same code on its own candidate, so that what
    the client does is written once.

    Args:
        local: What is computed.
        defense: What is done before it, and to it before it leaves; nothing by default.
    """

    local: LocalComputation
    defense: Protection = field(default_factory=chain)

    def __post_init__(self) -> None:
        """Refuse a defense that this computation cannot feed."""
        if self.chain.consumes not in self.local.produces:
            raise InvalidValue(
                f"{self.defense} takes {self.chain.consumes} updates, but {self.local} produces "
                f"only {' or '.join(self.local.produces)}; use Gradient(), or Clip for ClipEach"
            )
        if self.chain.produces != "aggregate":
            raise InvalidValue(
                f"{self.defense} leaves one update per example, which would be shared as it is; "
                "end the chain with Mean()"
            )

    @cached_property
    def chain(self) -> Chain:
        """The defense, seen as a chain."""
        return Chain.of(self.defense)

    def __call__(self, task: Task, batch: Batch, *, rng: Rng) -> Update:
        """Prepare, compute and defend; what crosses the wire."""
        return self.share(task, batch, rng=rng).update

    def broadcast(self, task: Task) -> Task:
        """The network that everybody holds under this defense; `task` is this one elsewhere."""
        return self.chain.broadcast(task)

    def share(self, task: Task, batch: Batch, *, rng: Rng) -> SharedUpdate:
        """Do what a call does, and keep what it was made from."""
        require_key(rng)
        task.check(batch)
        parts = self.chain.split(batch)
        keys = [rng] if len(parts) == 1 else [rng.fork("client", i) for i in range(len(parts))]
        prepared_batches, updates = [], []
        for part, key in zip(parts, keys, strict=True):
            prepared = self.chain.prepare(PreparedBatch.plain(task, part), rng=key)
            prepared_batches.append(prepared)
            updates.append(self.chain(self._compute(prepared), rng=key).detach())
        return SharedUpdate(
            self.chain.combine(updates, [len(part) for part in parts]), tuple(prepared_batches)
        )

    def expected(self, task: Task, inputs: Tensor, labels: Tensor) -> Update:
        """The update without its randomness, differentiable in the inputs."""
        parts = self.chain.split(Batch(inputs, labels))
        prepared_batches = [
            self.chain.prepare_expected(PreparedBatch.plain(task, part)) for part in parts
        ]
        updates = [self.chain.expected(self._compute(prepared)) for prepared in prepared_batches]
        return self.chain.combine(updates, [len(part) for part in parts])

    def _compute(self, prepared: PreparedBatch) -> Update:
        batch, wanted = prepared.batch, self.chain.consumes
        # Computed in the precision of the network; defenses then work in float32 at least.
        update = self.local(prepared.task, batch.inputs, batch.labels, granularity=wanted).map(
            upcast
        )
        masked = {
            n: t * prepared.masks[n] for n, t in update.tensors.items() if n in prepared.masks
        }
        return replace(update, tensors={**update.tensors, **masked})
