"""Update rules as pure functions, for all rows at once.

Every tensor has the rows first, `(R, ...)`; no rule lets one row see another. State is a tuple of
tensors of fixed shapes, so that a step can be captured as a CUDA graph and saved to a file.

Noise is a hash of a counter, which needs no state and gives the same numbers on every device. A
random generator would have to be saved with a run and cannot be replayed inside a CUDA graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue, require_at_least, require_positive, require_within

State = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Moment:
    """The time of a step in its run, as scalars on the device.

    Args:
        step: Steps taken so far.
        progress: The same as a share of the run, in [0, 1].
        scale: Factor of the schedule.
        same: Whether the objective is the same function as at the last step.
    """

    step: Tensor
    progress: Tensor
    scale: Tensor
    same: Tensor | bool = True


class Optimiser(Protocol):
    """A rule that moves points by their gradients."""

    def start(self, points: Tensor) -> State:
        """Return the state before the first step, for points `(R, D)`."""

    def step(
        self, points: Tensor, values: Tensor, gradients: Tensor, state: State, moment: Moment
    ) -> tuple[Tensor, State]:
        """Return the next points and state.

        Args:
            points: `(R, D)`.
            values: The objective there, `(R,)`.
            gradients: Its gradients, `(R, D)`.
            state: What `start` or the last step returned.
            moment: The time of this step.
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
        require_positive(step_size=self.step_size)
        if self.sign not in ("hard", "soft", "none"):
            raise InvalidValue(f"expected sign 'hard', 'soft' or 'none', got {self.sign!r}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidValue(f"expected two betas in [0, 1), got {self.betas!r}")

    def start(self, points: Tensor) -> State:
        """Zero moments and step counts."""
        return torch.zeros_like(points), torch.zeros_like(points), points.new_zeros(len(points), 1)

    def step(
        self, points: Tensor, values: Tensor, gradients: Tensor, state: State, moment: Moment
    ) -> tuple[Tensor, State]:
        """Take one step with bias correction."""
        first, second, count = state
        slow, slower = self.betas
        signed = self._take_sign(gradients, moment)
        count = count + 1
        first = torch.lerp(first, signed, 1 - slow)
        second = torch.lerp(second, signed.square(), 1 - slower)
        spread = (second / _bias_correction(slower, count)).sqrt() + self.eps
        pace = moment.scale * self.step_size / _bias_correction(slow, count)
        return points - pace * first / spread, (first, second, count)

    def _take_sign(self, gradients: Tensor, moment: Moment) -> Tensor:
        if self.sign == "hard":
            return gradients.sign()
        if self.sign == "soft":
            sharpness = (1 - moment.progress).clamp_min(1e-6)
            return torch.tanh(gradients * sharpness) / sharpness
        return gradients


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """Gradient descent, x - step_size g, or with Nesterov's momentum.

    Args:
        step_size: Length of a step, in multiples of the gradient.
        momentum: Share of the last step that is kept; 0 for none.

    References:
        Geiping et al., 2020, Table 1, where it fails (geiping2020inverting)
    """

    step_size: float = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require_positive(step_size=self.step_size)
        require_within("[0, 1)", momentum=self.momentum)

    def start(self, points: Tensor) -> State:
        """Begin at rest."""
        return (torch.zeros_like(points),) if self.momentum else ()

    def step(
        self, points: Tensor, values: Tensor, gradients: Tensor, state: State, moment: Moment
    ) -> tuple[Tensor, State]:
        """Take one step."""
        if not self.momentum:
            return points - moment.scale * self.step_size * gradients, state
        velocity = self.momentum * state[0] + gradients
        ahead = gradients + self.momentum * velocity
        return points - moment.scale * self.step_size * ahead, (velocity,)


def _bias_correction(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count to all digits; the plain difference would lose five in single precision."""
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))


def _as_int64(word: int) -> int:
    """Convert an unsigned 64-bit word to the signed integer with the same bits."""
    return (word + 2**63) % 2**64 - 2**63


_GOLDEN = _as_int64(0x9E3779B97F4A7C15)
_FIRST = _as_int64(0xBF58476D1CE4E5B9)
_SECOND = _as_int64(0x94D049BB133111EB)


def _normal_noise(seeds: Tensor, step: Tensor, size: int) -> Tensor:
    """Standard normal numbers `(R, size)` in double precision, by Box and Muller's method.

    Args:
        seeds: One 64-bit integer per row, `(R, 1)`.
        step: A counter, a scalar.
        size: Numbers per row.

    References:
        Steele et al., 2014 (steele2014fast)
    """
    key = _scramble(seeds + _scramble(step.to(torch.int64) * _GOLDEN))
    bits = stream(key, size)
    # Two halves of one word; adding 0.5 keeps the logarithm finite.
    first = (_shift_right(bits, 32).double() + 0.5) * 2.0**-32
    second = (bits & (2**32 - 1)).double() * 2.0**-32
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


def _row_seeds(points: Tensor, seed: int) -> Tensor:
    """Make a seed for each row `(R, 1)` from its content.

    So a row gets the same noise alone, among others, and in single or double precision. Equal rows
    get different seeds by their order.
    """
    # Adding zero turns minus zero into plus zero.
    bits = (points.float() + 0.0).view(torch.int32).long()
    content = _scramble(bits + stream(torch.zeros_like(bits[:, :1]), bits.shape[1])).sum(1)
    earlier = (content.unsqueeze(1) == content).tril(-1).sum(1)
    own = _scramble(content + _as_int64(seed)) + earlier * _GOLDEN
    return _scramble(own).unsqueeze(1)


def stream(key: Tensor, size: int) -> Tensor:
    """The first `size` words of SplitMix64 seeded with each key `(R, 1)`."""
    count = torch.arange(1, size + 1, device=key.device)
    return _scramble(key + count * _GOLDEN)


def _scramble(word: Tensor) -> Tensor:
    """Apply SplitMix64's bijection of 64-bit integers; products wrap around."""
    word = (word ^ _shift_right(word, 30)) * _FIRST
    word = (word ^ _shift_right(word, 27)) * _SECOND
    return word ^ _shift_right(word, 31)


def _shift_right(word: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch fills with the sign."""
    return torch.bitwise_and(word >> bits, 2 ** (64 - bits) - 1)


@dataclass(frozen=True)
class Langevin:
    """Add normal noise to the gradients before another rule uses them.

        g + std * schedule * N(0, I)

    The noise depends only on the seed, the start of the row and the step.

    Args:
        optimiser: The rule.
        std: Standard deviation of the noise before the schedule scales it.
        seed: Seed of the noise.

    Deviations:
        The paper adds the noise to the inputs, times the step size, after the rule; added to the
        gradient, it passes through the rule (and its sign, where that is taken).

    References:
        Yin et al., 2021, Sec. 3.4 (yin2021see)
    """

    optimiser: Optimiser
    std: float = field(default=0.2, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        require_at_least(0, std=self.std)

    def start(self, points: Tensor) -> State:
        """Return the seeds of the rows and the state of the rule."""
        return (_row_seeds(points, self.seed), *self.optimiser.start(points))

    def step(
        self, points: Tensor, values: Tensor, gradients: Tensor, state: State, moment: Moment
    ) -> tuple[Tensor, State]:
        """Add the noise and take the step of the rule."""
        seeds, *inner = state
        noise = _normal_noise(seeds, moment.step, points.shape[1]).to(gradients.dtype)
        noisy = gradients + self.std * moment.scale * noise
        moved, after = self.optimiser.step(points, values, noisy, tuple(inner), moment)
        return moved, (seeds, *after)
