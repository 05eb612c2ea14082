"""Compression by rounding: signs, and a few bits per entry.

Rounding has derivative zero almost everywhere, so an adversary who simulated it as it stands would
be worse off for knowing the defense. Each `expected` says what is simulated in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core import Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.chain import OnAggregate

# Wider steps also move entries whose sign is right, narrower ones hardly any from a random start;
# of 1 to 50, five brought back most on shallow networks.
SHARPNESS = 5.0


@dataclass(frozen=True, repr=False)
class Sign(OnAggregate):
    """Share only the sign of every entry.

    References:
        Bernstein et al., 2018 (bernstein2018signsgd)
    """

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Take signs; there is no randomness."""
        return update.map(Tensor.sign)

    def expected(self, update: Update) -> Update:
        """Signs, with the gradient of a smooth step, tanh(5 g / mean|g|) in each tensor."""
        return update.map(lambda t: _straight_through(_smooth_step(t), t.sign()))


@dataclass(frozen=True, repr=False)
class Quantize(OnAggregate):
    """Round every entry to `bits` bits on a grid of its tensor's own.

        q = s round(g / s),   s = max|g| / (2^(bits - 1) - 1)

    References:
        Alistarh et al., 2017 (alistarh2017qsgd); rounding here is to nearest, not random
    """

    bits: int

    def __post_init__(self) -> None:
        """Check the number of bits."""
        if not 2 <= self.bits <= 16:
            raise InvalidValue(f"expected 2 to 16 bits, got {self.bits!r}; use Sign() for one")

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Round; there is no randomness."""
        return update.map(self._round)

    def expected(self, update: Update) -> Update:
        """The update itself: what rounding adds is taken for noise of mean zero.

        Matching the staircase, hard or smoothed, brought back less than ignoring it.
        """
        return update

    def _round(self, tensor: Tensor) -> Tensor:
        levels = 2 ** (self.bits - 1) - 1
        step: Tensor = tensor.detach().abs().max().clamp_min(1e-30) / levels
        return torch.round(tensor / step).mul(step)


def _straight_through(carrier: Tensor, value: Tensor) -> Tensor:
    """`value`, differentiated as if it were `carrier`."""
    return carrier + (value - carrier).detach()


def _smooth_step(tensor: Tensor) -> Tensor:
    width = tensor.detach().abs().mean().clamp_min(1e-30) / SHARPNESS
    return torch.tanh(tensor / width)
