"""The client: a local computation followed by a defense."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from seepage.core import Batch, Defense, LocalComputation, Rng, Task, Update
from seepage.core.errors import InvalidValue
from seepage.defenses import chain


@dataclass(frozen=True)
class Client:
    """Computes on private data and shares only the defended update.

    The adversary's simulation runs `expected`, the same code on its own candidate, so that what
    the client does is written once.

    Args:
        local: What is computed.
        defense: What is done to it before it leaves; nothing by default.
    """

    local: LocalComputation
    defense: Defense = field(default_factory=chain)

    def __post_init__(self) -> None:
        """Refuse a defense that this computation cannot feed."""
        if self.defense.consumes not in self.local.produces:
            raise InvalidValue(
                f"{self.defense} takes {self.defense.consumes} updates, but {self.local} produces "
                f"only {' or '.join(self.local.produces)}; use Gradient(), or Clip for ClipEach"
            )
        if self.defense.produces != "aggregate":
            raise InvalidValue(
                f"{self.defense} leaves one update per example, which would be shared as it is; "
                "end the chain with Mean()"
            )

    def __call__(self, task: Task, batch: Batch, *, rng: Rng) -> Update:
        """Compute and defend; what crosses the wire."""
        task.check(batch)
        return self.defense(self._compute(task, batch.inputs, batch.labels), rng=rng).detach()

    def expected(self, task: Task, inputs: Tensor, labels: Tensor) -> Update:
        """The update without its randomness, differentiable in the inputs."""
        return self.defense.expected(self._compute(task, inputs, labels))

    def _compute(self, task: Task, inputs: Tensor, labels: Tensor) -> Update:
        return self.local(task, inputs, labels, granularity=self.defense.consumes)
