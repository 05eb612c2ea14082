"""Entries of an input that are not known, from those that are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, avg_pool2d


def fill_holes(shape: tuple[int, ...], index: Tensor, values: Tensor) -> Tensor:
    """An input of this shape with these values at these entries, and their means around them.

    Holes take the mean of what is known next to them, ring by ring; a channel of which nothing is
    known takes the mean of the others.

    Args:
        shape: `(C, H, W)` or `(C, L)`.
        index: `(n, axes)`; entries that come several times are averaged.
        values: `(n,)`.

    Example:
        >>> fill_holes((1, 5), torch.tensor([[0, 0], [0, 4]]), torch.tensor([1.0, 3.0])).tolist()
        [[1.0, 1.0, 2.0, 3.0, 3.0]]
    """
    count, total = values.new_zeros(shape), values.new_zeros(shape)
    count.index_put_(tuple(index.T), torch.ones_like(values), accumulate=True)
    total.index_put_(tuple(index.T), values, accumulate=True)
    known = count > 0
    filled = torch.where(known, total / count.clamp_min(1), 0.0)
    pool = avg_pool1d if len(shape) == 2 else avg_pool2d
    for _ in range(max(shape[1:])):
        around = pool(known.to(filled)[None], 3, 1, 1)[0]
        mean = pool(filled[None], 3, 1, 1)[0] / around.clamp_min(1e-12)
        ring = ~known & (around > 0)
        filled, known = torch.where(ring, mean, filled), known | ring
    shared = (filled * known).sum(0) / known.sum(0).clamp_min(1)
    return torch.where(known, filled, shared)
