"""What a training plan says: who computes what on whose examples, and how the server descends."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from seepage.core import LocalComputation, Rng
from seepage.utility.augment import CropAndFlip
from seepage.utility.schedules import Schedule


class Deal(Protocol):
    """Who brings which examples to which step."""

    def __call__(self, step: int) -> list[Tensor]:
        """Example numbers of every client that takes part, one tensor each."""

    @property
    def fewest(self) -> int:
        """The fewest examples that any client brings to a step; what a defense must do with."""


class Plan(Protocol):
    """A training, before it meets data: `Training` or `Federated`."""

    @property
    def local(self) -> LocalComputation:
        """What a client computes."""

    @property
    def cohort(self) -> int | None:
        """Clients that take part in a step; None for one, whose batch a defense may deal on."""

    @property
    def lr(self) -> float:
        """Learning rate of the server."""

    @property
    def momentum(self) -> float:
        """Momentum of the server."""

    @property
    def weight_decay(self) -> float:
        """Decay of the weights at the server."""

    @property
    def schedule(self) -> Schedule:
        """Factor of the learning rate at every step."""

    @property
    def augment(self) -> CropAndFlip | None:
        """What a client does to its examples at every step, if anything."""

    def count_steps(self, examples: int) -> int:
        """Number of updates the server takes."""

    def evaluated_every(self, examples: int) -> int:
        """Steps between two evaluations."""

    def sample_rate(self, examples: int) -> float | None:
        """Probability with which each example joins a step, where that is how steps are drawn."""

    def deal(self, labels: Tensor, *, rng: Rng) -> Deal:
        """Decide who brings what, given all labels."""
