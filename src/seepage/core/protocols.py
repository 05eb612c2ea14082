"""The seams: what a part must look like to take its place in the flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from seepage.core.batch import Batch
from seepage.core.lesson import Lesson
from seepage.core.observation import Observation
from seepage.core.paired import Paired
from seepage.core.reconstruction import Reconstruction
from seepage.core.rng import Rng
from seepage.core.task import Task
from seepage.core.update import Granularity, Update

# To mix the data, so that candidates stand for mixtures; to add to it; to change the network.
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
class Preparation(Protocol):
    """A defense that acts before there is an update: on the data, the network, or both."""

    @property
    def stage(self) -> Stage:
        """What it acts on; a chain goes through the stages in this order."""

    def broadcast(self, task: Task) -> Task:
        """The network that everybody holds under this defense."""

    def prepare(self, lesson: Lesson, *, rng: Rng) -> Lesson:
        """What the client trains, and on what."""

    def rehearse(self, lesson: Lesson) -> Lesson:
        """The deterministic part: what an informed adversary does with its own candidate."""


@runtime_checkable
class Aggregation(Protocol):
    """A defense by company: of several clients, only a combination is seen."""

    def split(self, batch: Batch) -> list[Batch]:
        """Deal the private data to the clients."""

    def combine(self, updates: Sequence[Update], sizes: Sequence[int]) -> Update:
        """Combine the clients' updates, given how many examples each holds."""


Protection = Defense | Preparation | Aggregation


@runtime_checkable
class Attack(Protocol):
    """Observation to reconstruction. There is no slot for the truth."""

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack."""


@runtime_checkable
class ActiveAttack(Protocol):
    """An attack by a server that cheats: it plants a network first, then reads the update."""

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network it sends in place of the honest one."""

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack an update computed on the planted network."""


@runtime_checkable
class SideBySide(Protocol):
    """An attack that can take several observations at once, which uses a card better."""

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Attack them all; the result is what attacking them one by one gives.

        Raises:
            PartlyFailed: Some cannot be attacked; it holds what the others gave. Of any other error
                an audit finds out case by case whose it is.
        """


@runtime_checkable
class Metric(Protocol):
    """One number per person, never reduced."""

    @property
    def name(self) -> str:
        """The key in tables."""

    @property
    def higher_leaks_more(self) -> bool:
        """Direction."""

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
