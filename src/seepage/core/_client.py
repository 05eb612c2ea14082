"""The client: input defenses, a local computation, then defenses of the update."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from seepage.core._batch import Batch
from seepage.core._chain import Chain, chain
from seepage.core._device import upcast
from seepage.core._observation import PreparedBatch
from seepage.core._protocols import HiddenComputation, LocalComputation, Protection
from seepage.core._rng import Rng, require_key
from seepage.core._task import Task
from seepage.core._update import Update
from seepage.core.errors import InvalidValue

# The largest difference of an update, by its length, that rounding explains; and how many draws of
# a defense are compared: one that acts on every second batch is found out 255 times in 256.
_AS_TOLD, _DRAWS = 1e-3, 8


@dataclass(frozen=True, eq=False)
class SharedUpdate:
    """A shared update, and what it was made from; `Threat` decides who sees what.

    Args:
        update: What is sent.
        prepared_batches: What was trained, and on what: one per client whose updates were
            aggregated.
    """

    update: Update
    prepared_batches: tuple[PreparedBatch, ...]


@dataclass(frozen=True)
class Client:
    """Computes on private data and shares only the defended update.

    The adversary's simulation runs `expected`: the same code, on its own candidate.

    Args:
        local: The local computation.
        defense: Applied before it, to the data or network, and after it, to the update.
    """

    local: LocalComputation
    defense: Protection = field(default_factory=chain)

    def __post_init__(self) -> None:
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
        """The defense as a chain."""
        return Chain.of(self.defense)

    def __call__(self, task: Task, batch: Batch, *, rng: Rng) -> Update:
        """Prepare, compute and defend; return the update that is sent."""
        return self.share(task, batch, rng=rng).update

    def broadcast(self, task: Task) -> Task:
        """The network that the server sends under this defense; other methods take it as `task`."""
        return self.chain.broadcast(task)

    def share(self, task: Task, batch: Batch, *, rng: Rng) -> SharedUpdate:
        """Compute the update, and keep what it was made from."""
        require_key(rng)
        task.check(batch)
        parts = self.chain.split(batch)
        keys = [rng] if len(parts) == 1 else [rng.fork("client", i) for i in range(len(parts))]
        prepared_batches, updates = [], []
        for part, key in zip(parts, keys, strict=True):
            prepared = self.chain.prepare(PreparedBatch.undefended(task, part), rng=key)
            prepared_batches.append(prepared)
            updates.append(
                self.chain(self._draw(prepared, key)._compute(prepared), rng=key).detach()
            )
        update = self.chain.combine(updates, [len(part) for part in parts])
        return SharedUpdate(update, tuple(prepared_batches))

    def expected(self, task: Task, inputs: Tensor, labels: Tensor) -> Update:
        """The update without its randomness, differentiable in the inputs."""
        parts = self.chain.split(Batch(inputs, labels))
        plain = [PreparedBatch.undefended(task, part) for part in parts]
        prepared_batches = [self.chain.prepare_expected(batch) for batch in plain]
        updates = [self.chain.expected(self._compute(prepared)) for prepared in prepared_batches]
        return self.chain.combine(updates, [len(part) for part in parts])

    def prepares_as_told(self, task: Task, inputs: Tensor, labels: Tensor, *, rng: Rng) -> bool:
        """Whether the input defenses give this batch the update that `expected` simulates.

        What they draw at random is no part of the simulation, so each of several draws must agree.
        Mixtures are compared with the simulation of the mixtures themselves.

        Args:
            task: The broadcast network.
            inputs: Of the batch.
            labels: Of the batch.
            rng: For the draws.
        """
        if not self.chain.input_defenses:
            return True
        plain = [PreparedBatch.undefended(task, p) for p in self.chain.split(Batch(inputs, labels))]
        keys = [rng.fork("prepare", draw) for draw in range(_DRAWS)]
        return all(self._is_told(part, key) for key in keys for part in plain)

    def _is_told(self, undefended: PreparedBatch, rng: Rng) -> bool:
        """Whether one draw of the input defenses gives the update that is simulated."""
        prepared = self.chain.prepare(undefended, rng=rng)
        candidate = undefended
        if prepared.mixing is not None:
            candidate = PreparedBatch.undefended(undefended.task, prepared.target)
        simulated, shared = (
            self.chain.expected(self._compute(each)).detach().flat().double()
            for each in (self.chain.prepare_expected(candidate), prepared)
        )
        return bool((shared - simulated).norm() <= _AS_TOLD * simulated.norm())

    def _draw(self, prepared: PreparedBatch, rng: Rng) -> Client:
        """The client with what the server does not see of its local computation."""
        if not isinstance(self.local, HiddenComputation):
            return self
        size = len(prepared.batch)
        return replace(self, local=self.local.draw(prepared.task, size, rng=rng.fork("local")))

    def _compute(self, prepared: PreparedBatch) -> Update:
        batch, wanted = prepared.batch, self.chain.consumes
        computed = self.local(prepared.task, batch.inputs, batch.labels, granularity=wanted)
        # Computed in the precision of the network; defenses then work in float32 at least.
        tensors = computed.map(upcast).tensors
        masked = {n: t * prepared.masks[n] for n, t in tensors.items() if n in prepared.masks}
        return replace(computed, tensors={**tensors, **masked})
