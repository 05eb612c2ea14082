"""What the adversary sees. Nothing else reaches an attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from torch import Tensor

from seepage.core.errors import MissingKnowledge, NotApplicable

if TYPE_CHECKING:
    from seepage.core._batch import Batch
    from seepage.core._client import Client
    from seepage.core._task import Task
    from seepage.core._update import Update


@dataclass(frozen=True, eq=False)
class Mixing:
    """How encodings were made from private inputs.

        e_j = sum_i W_ji x_i,   or   e_j = c +- (sum_i W_ji x_i - c)   with random signs per entry

    Args:
        coefficients: W, `(E, B)`: how much of each private input is in each encoding.
        flipped_about: The value c that entries were mirrored at, or None if they were not.
    """

    coefficients: Tensor
    flipped_about: float | None = None


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """What a client trains after its input defenses have run.

    Args:
        task: The network.
        batch: The training data.
        target: What the adversary tries to recover: the encodings if the data was mixed, otherwise
            the private batch.
        mixing: How the encodings were made, if the data was mixed.
        masks: Factors for the update, by parameter name.
    """

    task: Task
    batch: Batch
    target: Batch
    mixing: Mixing | None = None
    masks: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def undefended(cls, task: Task, batch: Batch) -> PreparedBatch:
        """The batch of a client without input defenses."""
        return cls(task, batch, target=batch)


class Simulate(Protocol):
    """The adversary's own run of the client: `(inputs, labels) -> Update`.

    `Threat.observe` makes one from a `Client`. Wrap a function of your own in `OwnSimulation`.
    """

    @property
    def client(self) -> Client | None:
        """The client as far as the adversary knows it; None if only its results can be had."""

    @property
    def task(self) -> Task:
        """The network that the simulated client trains."""

    @property
    def mixing(self) -> Mixing | None:
        """How candidates are mixed before the client trains on them, if they are."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> Update:
        """Return the update the client would share, as far as the adversary can tell."""

    def trained_on(self, inputs: Tensor) -> Tensor:
        """Return what the client would run the network on for these inputs."""

    def with_client(self, client: Client, /) -> Simulate:
        """Return the simulation of another client."""

    def with_task(self, task: Task, /) -> Simulate:
        """Return the simulation with another network."""

    def with_mixing(self, mixing: Mixing | None, /) -> Simulate:
        """Return the simulation with another mixing."""


@dataclass(frozen=True, eq=False)
class OwnSimulation:
    """A function of the user's own as a simulation, of a client that Seepage does not know.

    Attacks that only compare updates work with it. Attacks that look at the client or change the
    simulation do without or raise `NotApplicable`.

    Args:
        function: `(inputs, labels) -> Update`, differentiable in the inputs.
        task: The network that was broadcast.
    """

    function: Callable[[Tensor, Tensor], Update]
    task: Task
    client: None = field(default=None, init=False)
    mixing: None = field(default=None, init=False)

    def __call__(self, inputs: Tensor, labels: Tensor) -> Update:
        """Call the function."""
        return self.function(inputs, labels)

    def trained_on(self, inputs: Tensor) -> Tensor:
        """Return the inputs, since nothing is known of what the client does to them."""
        return inputs

    def with_client(self, _: object) -> NoReturn:
        """Refuse: the function is fixed."""
        raise NotApplicable(
            "expected a simulation of a Seepage client, got a function, which cannot be changed; "
            "use an attack that needs no knowledge of the client"
        )

    with_task = with_mixing = with_client


@dataclass(frozen=True)
class Statistics:
    """Mean and (biased) variance that one batch-normalisation layer measured, each `(C,)`."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class Observation:
    """The adversary's whole view; None means unknown.

    Made by `Threat.observe` or, for a captured update, by `Capture.observation`.

    Args:
        task: The broadcast network, in the mode the client ran it.
        update: What the client shared.
        simulate: The client's computation, with the defense if the adversary knows it.
        batch_size: Number of inputs to search for.
        labels: Their labels, sorted, since no server knows the order.
        statistics: What each batch-normalisation layer measured on the batch.
        mixing: How the client mixed its inputs, if that is known. The attack then searches for the
            private inputs, one column for each label, and `simulate` mixes them. If signs were
            flipped, it searches for the encodings, one row for each label.
        others: What was seen of the same batch in other rounds. Attacks use this observation alone,
            except those that say that they take several (`Unmixed`).
    """

    task: Task
    update: Update
    simulate: Simulate
    batch_size: int | None = None
    labels: Tensor | None = None
    statistics: Mapping[str, Statistics] | None = None
    mixing: Mixing | None = None
    others: tuple[Observation, ...] = ()

    def require_labels(self, needed_by: object) -> Tensor:
        """Return the labels, or raise `MissingKnowledge`."""
        if self.labels is None:
            raise MissingKnowledge("labels", needed_by=needed_by)
        return self.labels

    def require_batch_size(self, needed_by: object) -> int:
        """Return the batch size, or raise `MissingKnowledge`."""
        if self.batch_size is None:
            raise MissingKnowledge("batch size", needed_by=needed_by)
        return self.batch_size
