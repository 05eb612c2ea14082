"""The seams: what a part must look like to take its place in the flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from seepage.core.errors import InvalidValue, SeepageError

if TYPE_CHECKING:
    from torch import Tensor

    from seepage.core._batch import Batch
    from seepage.core._observation import Observation, PreparedBatch
    from seepage.core._reconstruction import Paired, Reconstruction
    from seepage.core._rng import Rng
    from seepage.core._task import Task
    from seepage.core._update import Granularity, Update

# A defense may mix the data (candidates are then mixtures), add to it, or change the network.
Stage = Literal["mixing", "data", "network"]


@runtime_checkable
class LocalComputation(Protocol):
    """Data to update: a pure function of parameters and inputs, differentiable in the inputs."""

    @property
    def produces(self) -> tuple[Granularity, ...]:
        """The granularities it can give."""

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Compute the update on inputs in natural units; safe under `torch.func.vmap`."""


@runtime_checkable
class HiddenComputation(Protocol):
    """A local computation of which the server does not see all, such as the order of the data.

    The call is what the adversary simulates in its place.
    """

    def draw(self, task: Task, examples: int, *, rng: Rng) -> LocalComputation:
        """Draw what is not seen, for one update on so many examples: what the client computes."""


@runtime_checkable
class Defense(Protocol):
    """Update to update: a frozen value, composed by `chain`."""

    @property
    def consumes(self) -> Granularity:
        """What it takes."""

    @property
    def produces(self) -> Granularity:
        """What it gives."""

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Defend."""

    def expected(self, update: Update) -> Update:
        """The deterministic part: what an informed adversary simulates, differentiable."""


@runtime_checkable
class InputDefense(Protocol):
    """A defense that acts before there is an update: on the data, the network, or both."""

    @property
    def stage(self) -> Stage:
        """What it acts on; a chain goes through the stages in this order."""

    def broadcast(self, task: Task) -> Task:
        """The network that everybody holds under this defense."""

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """What the client trains, and on what."""

    def prepare_expected(self, prepared: PreparedBatch) -> PreparedBatch:
        """The deterministic part: what an informed adversary does with its own candidate."""


@runtime_checkable
class Aggregation(Protocol):
    """A defense by which only a combination of several clients' updates is seen."""

    def split(self, batch: Batch) -> list[Batch]:
        """Split the private data among the clients."""

    def combine(self, updates: Sequence[Update], sizes: Sequence[int]) -> Update:
        """Combine the clients' updates, given how many examples each holds."""


Protection = Defense | InputDefense | Aggregation


@runtime_checkable
class Attack(Protocol):
    """Observation to reconstruction. There is no slot for the truth."""

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack."""


@runtime_checkable
class ActiveAttack(Protocol):
    """An attack by a malicious server: it plants a network first, then reads the update."""

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network it sends in place of the honest one."""

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack an update computed on the planted network."""


@runtime_checkable
class SideBySide(Protocol):
    """An attack that can take several observations at once, which uses a GPU better."""

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> Sequence[Reconstruction | SeepageError]:
        """Attack them all; the result is what attacking them one by one gives.

        An observation that cannot be attacked has its error in place of a reconstruction. If the
        whole call raises, an audit attacks smaller groups until it knows which case is the cause.
        """


@runtime_checkable
class _NeedsLabels(Protocol):
    """An attack that says itself whether it can begin without the labels."""

    @property
    def needs_labels(self) -> bool:
        """Whether it raises `MissingKnowledge` if the labels are not known."""


def needs_labels(attack: object) -> bool:
    """Whether an attack is known to need the labels before it runs; others may say so later.

    Example:
        >>> import seepage as sp
        >>> needs_labels(sp.attacks.inverting_gradients()), needs_labels(sp.attacks.dlg())
        (True, False)
    """
    return isinstance(attack, _NeedsLabels) and attack.needs_labels


@runtime_checkable
class Metric(Protocol):
    """One number per example, never reduced."""

    @property
    def name(self) -> str:
        """The key in tables."""

    @property
    def higher_leaks_more(self) -> bool:
        """Direction."""

    def __call__(self, paired: Paired) -> Tensor:
        """Score each example, `(B,)`."""


# Of the error: "lower" if no attack comes closer, "upper" if some attack comes this close.
Side = Literal["lower", "upper"]


@dataclass(frozen=True, eq=False)
class BoundValue:
    """A bound on the error of reconstructions, and what it rests on.

    Args:
        value: `(B,)`, one number per example; infinite or zero if it says nothing.
        side: Whether the error is at least or at most this.
        metric: Name of the metric it bounds, as scoring spells it.
        assumptions: Under which it holds, each a phrase a report can print.
        remark: Why the bound says nothing; empty if it says something.
    """

    value: Tensor
    side: Side
    metric: str
    assumptions: tuple[str, ...] = ()
    remark: str = ""

    def __post_init__(self) -> None:
        if self.value.ndim != 1 or bool(self.value.isnan().any()):
            raise InvalidValue(
                f"expected a bound as one number per person, got {self.value!r}; say in a remark "
                "why it cannot be given"
            )

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing."""
        return bool(self.remark)
