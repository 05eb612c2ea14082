"""Update rules as pure functions, for all rows at once.

Every tensor has the rows first, `(R, ...)`; no rule lets one row see another. State is a tuple of
tensors of fixed shapes, so that a step can be captured as a CUDA graph and saved to a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue

State = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Moment:
    """Where in a run a step is taken, as scalars on the device.

    Args:
        step: Steps taken so far.
        progress: The same as a share of the run, in [0, 1].
        scale: Factor of the schedule.
        same: Whether the objective is what it was at the last step.
    """

    step: Tensor
    progress: Tensor
    scale: Tensor
    same: Tensor | bool = True


class Optimiser(Protocol):
    """A rule that moves points against gradients."""

    def start(self, points: Tensor) -> State:
        """State before the first step, for points `(R, D)`."""

    def step(
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        state: State,
        moment: Moment,
    ) -> tuple[Tensor, State]:
        """Return the next points and state.

        Args:
            points: `(R, D)`.
            values: The objective there, `(R,)`.
            gradients: Its gradients, `(R, D)`.
            state: What `start` or the last step returned.
            moment: Where in the run this is.
        """


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam, on the gradient or on its sign.

    The sign makes every pixel move at the same pace, as in adversarial attacks. The soft sign
    tanh(s g) / s with s falling from 1 to 0 over the run ends as the plain gradient.

    References:
        Kingma and Ba, 2015 (kingma2015adam); signed: Geiping et al., 2020, Sec. 3
        (geiping2020inverting)
    """

    step_size: float = 0.1
    sign: Literal["hard", "soft", "none"] = "hard"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Check the options."""
        _check_step_size(self.step_size)
        if self.sign not in ("hard", "soft", "none"):
            raise InvalidValue(f"expected sign 'hard', 'soft' or 'none', got {self.sign!r}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidValue(f"expected two betas in [0, 1), got {self.betas!r}")

    def start(self, points: Tensor) -> State:
        """Zero moments and step counts."""
        return torch.zeros_like(points), torch.zeros_like(points), points.new_zeros(len(points), 1)

    def step(
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        state: State,
        moment: Moment,
    ) -> tuple[Tensor, State]:
        """One step of Adam with bias correction."""
        first, second, count = state
        slow, slower = self.betas
        signed = self._signed(gradients, moment)
        count = count + 1
        first = torch.lerp(first, signed, 1 - slow)
        second = torch.lerp(second, signed.square(), 1 - slower)
        spread = (second / _warmth(slower, count)).sqrt() + self.eps
        pace = moment.scale * self.step_size / _warmth(slow, count)
        return points - pace * first / spread, (first, second, count)

    def _signed(self, gradients: Tensor, moment: Moment) -> Tensor:
        if self.sign == "hard":
            return gradients.sign()
        if self.sign == "soft":
            sharpness = (1 - moment.progress).clamp_min(1e-6)
            return torch.tanh(gradients * sharpness) / sharpness
        return gradients


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """Plain gradient descent: x - step_size g.

    References:
        Geiping et al., 2020, Table 1, where it fails (geiping2020inverting)
    """

    step_size: float = 0.1

    def __post_init__(self) -> None:
        """Check the step size."""
        _check_step_size(self.step_size)

    def start(self, points: Tensor) -> State:
        """Nothing to remember."""
        return ()

    def step(
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        state: State,
        moment: Moment,
    ) -> tuple[Tensor, State]:
        """One step."""
        return points - moment.scale * self.step_size * gradients, state


def _warmth(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, to all digits: in single precision the difference would lose five."""
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))


def _check_step_size(step_size: float) -> None:
    if not 0 < step_size < float("inf"):
        raise InvalidValue(f"expected step_size > 0, got {step_size!r}")
