"""Gradient pruning: small entries are set to zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from seepage.core import Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.link import OnAggregate


@dataclass(frozen=True, repr=False)
class Prune(OnAggregate):
    """Zero the fraction `ratio` of entries that are smallest in magnitude.

    With k = floor(ratio * n) of n entries pruned, an entry survives if its magnitude exceeds the
    k-th smallest, so ties with it go too. Which entries survive depends on the data: unlike
    dropout, the mask itself tells the adversary something, and the deterministic part is the whole
    defense.

    Args:
        ratio: Fraction pruned, in [0, 1].
        scope: "tensor" ranks the entries of each tensor apart (000), "update" all together.

    References:
        Huang et al., 2021 (huang2021evaluating); Zhu et al., 2019 (zhu2019deep)
    """

    ratio: float
    scope: Literal["tensor", "update"] = field(default="tensor", kw_only=True)

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.ratio <= 1:
            raise InvalidValue(f"expected a pruning ratio in [0, 1], got {self.ratio!r}")
        if self.scope not in ("tensor", "update"):
            raise InvalidValue(f"expected scope 'tensor' or 'update', got {self.scope!r}")

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Prune; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Prune; gradients flow through what survives."""
        if self.scope == "tensor":
            return update.map(lambda t: torch.where(t.abs() > self._threshold(t), t, 0.0))
        threshold = self._threshold(update.flat())
        return update.map(lambda t: torch.where(t.abs() > threshold, t, 0.0))

    def _threshold(self, entries: Tensor) -> Tensor:
        magnitudes = entries.detach().abs().flatten()
        pruned = int(self.ratio * len(magnitudes))
        if pruned == 0:
            return magnitudes.new_tensor(-1.0)
        if magnitudes.is_cuda:
            # There a selection runs in one block, which is slower than sorting in all of them.
            return magnitudes.sort().values[pruned - 1]
        return magnitudes.kthvalue(pruned).values
