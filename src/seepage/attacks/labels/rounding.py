"""From estimated counts to whole ones."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest_counts(estimate: Tensor, total: int) -> Tensor:
    """The non-negative integers with this sum that are nearest to an estimate, `(K,)`.

        argmin ||n - estimate||^2   over   n in {0, 1, ...}^K, sum n = total

    Each unit is added or taken where it costs least, which is optimal for a separable convex
    cost. Of equal choices the first class is taken.

    Example:
        >>> nearest_counts(torch.tensor([1.6, -0.3, 0.7]), 2).tolist()
        [1, 0, 1]
    """
    counts = estimate.clamp_min(0).round()
    while counts.sum() > total:
        cost = torch.where(counts > 0, estimate - counts, torch.inf)
        counts[cost.argmin()] -= 1
    while counts.sum() < total:
        counts[(counts - estimate).argmin()] += 1
    return counts.long()
