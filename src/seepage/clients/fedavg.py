"""Federated averaging: the client takes local steps and shares how far it moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.clients.gradient import batch_gradient
from seepage.core import Task, Update
from seepage.core.errors import InvalidValue
from seepage.core.update import Granularity


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """The parameters after local SGD minus the parameters before.

        v_t = momentum v_{t-1} + dL(batch_t)/dtheta_t,   theta_{t+1} = theta_t - lr v_t

    Local batches are consecutive slices of the data, in order and cycled; the last one of an
    epoch may be smaller. Buffers of normalisation layers are not part of the update.

    Args:
        lr: Local learning rate.
        steps: Number of local steps; give this or `epochs`.
        epochs: Passes over the data instead of steps.
        local_batch_size: Examples per step; None takes all at every step.
        momentum: As in `torch.optim.SGD`, without dampening.

    Example:
        >>> FedAvg(lr=0.1, epochs=2, local_batch_size=4).count_steps(examples=10)
        6

    References:
        McMahan et al., 2017 (mcmahan2017communication); Geiping et al., 2020, Eq. 8
        (geiping2020inverting)
    """

    produces: ClassVar[tuple[Granularity, ...]] = ("aggregate",)

    lr: float
    steps: int | None = None
    epochs: int | None = None
    local_batch_size: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if (self.steps is None) == (self.epochs is None):
            raise InvalidValue(
                f"expected either steps or epochs, got steps={self.steps!r}, epochs={self.epochs!r}"
            )
        for name in ("steps", "epochs", "local_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValue(f"expected {name} >= 1, got {value!r}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise InvalidValue(f"expected lr > 0, got {self.lr!r}")
        if not 0 <= self.momentum < 1:
            raise InvalidValue(f"expected 0 <= momentum < 1, got {self.momentum!r}")

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Take the local steps, differentiably."""
        if granularity != "aggregate":
            raise InvalidValue(
                "FedAvg mixes its examples from the second step on and has no per-example update; "
                "use Gradient(), or Clip in place of ClipEach"
            )
        before = task.parameters
        after = dict(before)
        velocity: dict[str, Tensor] | None = None
        for window in self._windows(len(inputs)):
            gradient = batch_gradient(task, after, inputs[window], labels[window])
            if velocity is None or self.momentum == 0:
                velocity = gradient
            else:
                velocity = {n: self.momentum * velocity[n] + g for n, g in gradient.items()}
            after = {n: torch.add(p, velocity[n], alpha=-self.lr) for n, p in after.items()}
        return Update({n: after[n] - before[n] for n in before}, kind="difference")

    def count_steps(self, examples: int) -> int:
        """Number of local steps on this many examples."""
        return self.steps or (self.epochs or 0) * math.ceil(examples / self._size(examples))

    def _size(self, examples: int) -> int:
        return min(self.local_batch_size or examples, examples)

    def _windows(self, examples: int) -> Iterator[slice]:
        size = self._size(examples)
        starts = range(0, examples, size)
        for step in range(self.count_steps(examples)):
            start = starts[step % len(starts)]
            yield slice(start, start + size)
