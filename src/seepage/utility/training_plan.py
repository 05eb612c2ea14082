"""What a training plan says: who computes what on whose examples, and how the server descends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seepage.core import LocalComputation, Rng
from seepage.core.errors import InvalidValue
from seepage.numerics.schedules import Schedule


@dataclass(frozen=True)
class CropAndFlip:
    """Shift images by up to `margin` pixels, with zeros coming in, and mirror half of them.

    References:
        He et al., 2016, Sec. 4.2 (he2016deep)
    """

    margin: int = 4

    def __post_init__(self) -> None:
        """Check the margin."""
        if self.margin < 0:
            raise InvalidValue(f"expected margin >= 0, got {self.margin!r}")

    def __call__(self, images: Tensor, *, rng: Rng) -> Tensor:
        """Augment images `(B, C, H, W)`."""
        if images.ndim != 4:
            shape = tuple(images.shape[1:])
            raise InvalidValue(f"{self} shifts images (C, H, W), got inputs of shape {shape}")
        height, width = images.shape[-2:]
        padded = torch.nn.functional.pad(images, (self.margin,) * 4)
        rows = self._shifts(images, height, rng=rng.fork("rows"))
        columns = self._shifts(images, width, rng=rng.fork("columns"))
        mirrored = rng.fork("mirror").uniform((len(images), 1), like=images) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        each = torch.arange(len(images), device=images.device)
        # Indices (B, H, W) around a slice put the channels last.
        chosen = padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return chosen.movedim(-1, 1)

    def _shifts(self, images: Tensor, length: int, *, rng: Rng) -> Tensor:
        """Where each image's pixels along one axis come from, `(B, length)`."""
        start = (rng.uniform((len(images), 1), like=images) * (2 * self.margin + 1)).long()
        return start + torch.arange(length, device=images.device)


class Deal(Protocol):
    """Who brings which examples to which step."""

    def __call__(self, step: int) -> list[Tensor]:
        """Example numbers of every client that takes part, one tensor each."""

    @property
    def fewest(self) -> int:
        """The fewest examples that any client brings to a step; what a defense must do with."""


class TrainingPlan(Protocol):
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


def whole(name: str, value: int | None, *, at_least: int = 1) -> None:
    """Refuse a number that is given but too small."""
    if value is not None and value < at_least:
        raise InvalidValue(f"expected {name} >= {at_least}, got {value!r}")


def descent(lr: float, momentum: float, weight_decay: float) -> None:
    """Refuse what stochastic gradient descent cannot run with."""
    if not (lr > 0 and math.isfinite(lr)):
        raise InvalidValue(f"expected lr > 0, got {lr!r}")
    if not 0 <= momentum < 1:
        raise InvalidValue(f"expected 0 <= momentum < 1, got {momentum!r}")
    if not (weight_decay >= 0 and math.isfinite(weight_decay)):
        raise InvalidValue(f"expected weight_decay >= 0, got {weight_decay!r}")
