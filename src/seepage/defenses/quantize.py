"""Compression by rounding: signs, and a few bits per entry.

Rounding has derivative zero almost everywhere, so an adversary could not search through it. Each
`expected` says what is simulated instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.chain import OnAggregate

# A wider step also moves entries whose sign is right; a narrower one moves hardly any entry from a
# random start. Among 1 to 50, five recovered most on shallow networks.
SHARPNESS = 5.0


@dataclass(frozen=True, repr=False)
class Sign(OnAggregate):
    """Share only the sign of every entry.

    References:
        Bernstein et al., 2018 (bernstein2018signsgd)
    """

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Take signs."""
        return update.map(Tensor.sign)

    def expected(self, update: Update) -> Update:
        """Take signs, with the derivative of a smooth step, tanh(5 g / mean|g|) in each tensor."""
        return update.map(_take_smooth_sign)


@dataclass(frozen=True, repr=False)
class Quantize(OnAggregate):
    """Round every entry to `bits` bits, with one grid per tensor.

        q = s round(g / s),   s = max|g| / (2^(bits - 1) - 1)

    References:
        Alistarh et al., 2017 (alistarh2017qsgd); rounding here is to nearest, not random
    """

    keeps_gradient: ClassVar[bool] = True
    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise InvalidValue(f"expected 2 to 16 bits, got {self.bits!r}; use Sign() for one")

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Round to nearest."""
        return update.map(self._round)

    def expected(self, update: Update) -> Update:
        """Return the update itself, as if rounding were noise of mean zero.

        Matching the staircase, hard or smoothed, recovered less than ignoring it.
        """
        return update

    def _round(self, tensor: Tensor) -> Tensor:
        levels = 2 ** (self.bits - 1) - 1
        step: Tensor = tensor.detach().abs().max().clamp_min(1e-30) / levels
        return torch.round(tensor / step).mul(step)


def _take_smooth_sign(tensor: Tensor) -> Tensor:
    """The sign, differentiated as if it were the smooth step."""
    width = tensor.detach().abs().mean().clamp_min(1e-30) / SHARPNESS
    smooth = torch.tanh(tensor / width)
    return smooth + (tensor.sign() - smooth).detach()
