"""Training on one data set, a random batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from seepage.clients.gradient import Gradient
from seepage.core import LocalComputation, Rng
from seepage.core.errors import InvalidValue
from seepage.numerics.schedules import Constant, Schedule
from seepage.utility.training_plan import CropAndFlip, descent, whole

Sampling = Literal["shuffled", "poisson"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Stochastic gradient descent with the defense on every step.

        v_t = momentum v_{t-1} + defended gradient,   theta_{t+1} = theta_t - lr v_t

    Every step, a client holds one batch of the data.

    Args:
        epochs: Passes over the data; give this or `steps`.
        steps: Updates instead of epochs.
        batch_size: Examples per step. "shuffled" leaves out what is too little for a last batch, a
            random part of the data in every epoch.
        lr: Learning rate.
        momentum: As in `torch.optim.SGD`, without dampening.
        weight_decay: Added to the defended gradient, times the weights.
        schedule: Factor of the learning rate at every step.
        sampling: "shuffled": batches of one size, everybody once per epoch. "poisson": everybody
            joins every step with probability B/N, which is what the account of DP-SGD assumes.
        augment: What is done to the examples first; nothing by default.

    Example:
        >>> Training(epochs=2, batch_size=64).count_steps(examples=200)
        6

    References:
        Huang et al., 2021, Sec. A.1 (huang2021evaluating); Abadi et al., 2016 (abadi2016deep) on
        sampling
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = field(default_factory=Constant)
    sampling: Sampling = "shuffled"
    augment: CropAndFlip | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if (self.steps is None) == (self.epochs is None):
            raise InvalidValue(
                f"expected either steps or epochs, got steps={self.steps!r}, epochs={self.epochs!r}"
            )
        for name in ("steps", "epochs", "batch_size"):
            whole(name, getattr(self, name))
        descent(self.lr, self.momentum, self.weight_decay)
        if self.sampling not in ("shuffled", "poisson"):
            raise InvalidValue(f"expected sampling 'shuffled' or 'poisson', got {self.sampling!r}")

    @property
    def local(self) -> LocalComputation:
        """The gradient of the batch."""
        return Gradient()

    @property
    def cohort(self) -> int | None:
        """One client, whose batch a defense may deal to several."""
        return None

    def count_steps(self, examples: int) -> int:
        """Number of updates on this many examples."""
        return self.steps or (self.epochs or 0) * self.evaluated_every(examples)

    def evaluated_every(self, examples: int) -> int:
        """Steps of one epoch."""
        return max(examples // self.batch_size, 1)

    def sample_rate(self, examples: int) -> float | None:
        """B/N under Poisson sampling."""
        return self.batch_size / examples if self.sampling == "poisson" else None

    def deal(self, labels: Tensor, *, rng: Rng) -> _Shuffled | Poisson:
        """Decide which examples every step sees."""
        if self.batch_size > len(labels):
            raise InvalidValue(
                f"expected at least batch_size = {self.batch_size} examples to train on, got "
                f"{len(labels)}; use a smaller batch_size"
            )
        if self.sampling == "poisson":
            return Poisson(len(labels), self.batch_size, rng)
        return _Shuffled(len(labels), self.batch_size, rng)


@dataclass(frozen=True)
class _Shuffled:
    """A new order every epoch, cut into batches of one size."""

    examples: int
    fewest: int
    rng: Rng

    def __call__(self, step: int) -> list[Tensor]:
        """The batch of a step."""
        epoch, position = divmod(step, self.examples // self.fewest)
        order = self.rng.fork(epoch).permutation(self.examples)
        return [order[position * self.fewest :][: self.fewest]]


@dataclass(frozen=True)
class Poisson:
    """Everybody joins every step independently; `fewest` is the number to be expected."""

    examples: int
    fewest: int
    rng: Rng

    def __call__(self, step: int) -> list[Tensor]:
        """Whoever joins a step; nobody at all, which is most unlikely, is an empty tensor."""
        joins = self.rng.fork(step).uniform((self.examples,)) < self.fewest / self.examples
        return [torch.nonzero(joins).flatten()]
