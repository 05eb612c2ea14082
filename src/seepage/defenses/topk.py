"""Sparsification: only the largest entries are sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seepage.core import Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.link import OnAggregate


@dataclass(frozen=True, repr=False)
class TopK(OnAggregate):
    """Keep exactly the k entries of the whole update that are largest in magnitude.

    Unlike `Prune`, which lets ties with the threshold go, it sends k entries whatever their values.

    Args:
        k: How many entries are sent.

    References:
        Stich et al., 2018 (stich2018sparsified), without the memory of what was not sent
    """

    k: int

    def __post_init__(self) -> None:
        """Check the number."""
        if self.k < 1:
            raise InvalidValue(f"expected k >= 1 entries, got {self.k!r}")

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Sparsify; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Sparsify; gradients flow through what is kept."""
        flat = update.flat()
        if self.k > len(flat):
            raise InvalidValue(
                f"expected at most {len(flat)} entries to keep, as many as the update has, got "
                f"{self.k!r}"
            )
        kept = flat.detach().abs().topk(self.k).indices
        return update.unflatten(flat * torch.zeros_like(flat).scatter(0, kept, 1.0))
