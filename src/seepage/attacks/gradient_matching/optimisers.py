"""Update rules as pure functions of point, gradient and state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue


class Optimiser(Protocol):
    """A rule that moves a point against a gradient."""

    @property
    def step_size(self) -> float:
        """Step size before any schedule."""

    def start(self, point: Tensor) -> tuple[Tensor, ...]:
        """State before the first step."""

    def step(
        self, point: Tensor, gradient: Tensor, state: tuple[Tensor, ...], scale: float
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the next point and state; `scale` multiplies the step size."""


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam, on the gradient or on its sign.

    The sign makes every pixel move at the same pace, as in adversarial attacks.

    References:
        Kingma and Ba, 2015 (kingma2015adam); signed: Geiping et al., 2020, Sec. 3
        (geiping2020inverting)
    """

    step_size: float = 0.1
    signed: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Check the step size."""
        if not self.step_size > 0:
            raise InvalidValue(f"expected step_size > 0, got {self.step_size!r}")

    def start(self, point: Tensor) -> tuple[Tensor, ...]:
        """Zero moments and step count."""
        return torch.zeros_like(point), torch.zeros_like(point), point.new_zeros(())

    def step(
        self, point: Tensor, gradient: Tensor, state: tuple[Tensor, ...], scale: float
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One step of Adam with bias correction."""
        first, second, count = state
        slow, slower = self.betas
        gradient = gradient.sign() if self.signed else gradient
        count = count + 1
        first = slow * first + (1 - slow) * gradient
        second = slower * second + (1 - slower) * gradient.square()
        spread = (second / (1 - slower**count)).sqrt() + self.eps
        moved = point - scale * self.step_size * (first / (1 - slow**count)) / spread
        return moved, (first, second, count)
