"""Compression: entries set to zero by magnitude or at random, signs, and a few bits per entry.

Rounding has derivative zero almost everywhere, so an adversary could not search through it. Each
`expected` says what is simulated instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.core import Rng, Update
from seepage.core._chain import OnAggregate
from seepage.core.errors import InvalidValue

# A wider step also moves entries whose sign is right; a narrower one moves hardly any entry from a
# random start. Among 1 to 50, five recovered most on shallow networks.
SHARPNESS = 5.0


@dataclass(frozen=True, repr=False)
class Prune(OnAggregate):
    """Zero the fraction `ratio` of entries that are smallest in magnitude.

    With k = floor(ratio * n) of n entries pruned, an entry survives if its magnitude exceeds the
    k-th smallest, so ties are pruned too. Which entries survive depends on the data: unlike with
    dropout, the mask itself tells the adversary something. There is no randomness.

    Args:
        ratio: Fraction pruned, in [0, 1].
        scope: "tensor" ranks the entries within each tensor (000), "update" all together.

    References:
        Huang et al., 2021 (huang2021evaluating); Zhu et al., 2019 (zhu2019deep)
    """

    label = "Prune {ratio:g}"
    repeatable: ClassVar[bool] = True
    ratio: float
    scope: Literal["tensor", "update"] = field(default="tensor", kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise InvalidValue(f"expected a pruning ratio in [0, 1], got {self.ratio!r}")
        if self.scope not in ("tensor", "update"):
            raise InvalidValue(f"expected scope 'tensor' or 'update', got {self.scope!r}")

    def expected(self, update: Update) -> Update:
        """Prune; gradients flow through the surviving entries."""
        if self.scope == "tensor":
            return update.map(lambda t: torch.where(t.abs() > self._threshold(t), t, 0.0))
        threshold = self._threshold(update.flat())
        return update.map(lambda t: torch.where(t.abs() > threshold, t, 0.0))

    def _threshold(self, entries: Tensor) -> Tensor:
        magnitudes = entries.detach().abs().flatten()
        # The product of floats would bring 0.29 * 100 below 29.
        pruned = math.floor(Fraction(str(self.ratio)) * len(magnitudes))
        if pruned == 0:
            return magnitudes.new_tensor(-1.0)
        if magnitudes.is_cuda:
            # On a GPU, `kthvalue` runs in a single block, which is slower than a parallel sort.
            return magnitudes.sort().values[pruned - 1]
        return magnitudes.kthvalue(pruned).values


@dataclass(frozen=True, repr=False)
class TopK(OnAggregate):
    """Keep exactly the k entries of the whole update that are largest in magnitude.

    Unlike `Prune`, which also prunes ties, it always sends exactly k entries.

    References:
        Stich et al., 2018 (stich2018sparsified), without the memory of unsent entries
    """

    label = "Top {k}"
    repeatable: ClassVar[bool] = True
    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidValue(f"expected k >= 1 entries, got {self.k!r}")

    def expected(self, update: Update) -> Update:
        """Sparsify; gradients flow through the entries that are kept."""
        flat = update.flat()
        if self.k > len(flat):
            raise InvalidValue(
                f"expected at most {len(flat)} entries to keep, as many as the update has, got "
                f"{self.k!r}"
            )
        kept = flat.detach().abs().topk(self.k).indices
        return update.unflatten(flat * torch.zeros_like(flat).scatter(0, kept, 1.0))


@dataclass(frozen=True, repr=False)
class Dropout(OnAggregate):
    """Zero each entry of the update independently with probability `rate`.

    Args:
        rate: Probability that an entry is dropped, in [0, 1).
        rescale: Divide the surviving entries by 1 - rate, so that the mean is the update itself.
            The paper does not.

    References:
        Liu et al., 2024, Sec. 3.4 and E.1 (liu2024systematic)
    """

    label = "Dropout {rate:g}"

    rate: float
    rescale: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise InvalidValue(f"expected a dropout rate in [0, 1), got {self.rate!r}")

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Drop entries chosen by `rng`."""
        flat = update.flat()
        kept = (rng.uniform(flat.shape, like=flat.double()) >= self.rate).to(flat.dtype)
        return update.unflatten(flat * kept * self.factor)

    def expected(self, update: Update) -> Update:
        """Compute the mean over masks: the update, times 1 - rate unless rescaled."""
        scale = self.factor * (1 - self.rate)
        return update.map(lambda t: t * scale)

    @property
    def factor(self) -> float:
        """Factor of the surviving entries."""
        return 1 / (1 - self.rate) if self.rescale else 1.0


@dataclass(frozen=True, repr=False)
class Sign(OnAggregate):
    """Share only the sign of every entry.

    References:
        Bernstein et al., 2018 (bernstein2018signsgd)
    """

    label = "Sign"
    repeatable: ClassVar[bool] = True

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

    label = "Quantize {bits} bits"
    keeps_gradient: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
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
