"""The seams: what a part must look like to take its place in the flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from seepage.core.observation import Observation
from seepage.core.paired import Paired
from seepage.core.reconstruction import Reconstruction
from seepage.core.rng import Rng
from seepage.core.task import Task
from seepage.core.update import Granularity, Update


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
class Attack(Protocol):
    """Observation to reconstruction. There is no slot for the truth."""

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack."""


@runtime_checkable
class SideBySide(Protocol):
    """An attack that can take several observations at once, which uses a card better."""

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Attack them all; the result is what attacking them one by one gives."""


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
