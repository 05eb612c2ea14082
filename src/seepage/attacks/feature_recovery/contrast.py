"""What of a source is sparse, and so tells sources from their mixtures.

Pixels of natural images are neither sparse nor independent between images: all are bright in the
sky and dark at the ground. Differences of neighbours are both, and since they are linear, those of
a mixture are the same mixture of those of the sources.
"""

from __future__ import annotations

import torch
from torch import Tensor


def edges(sources: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences of neighbours and second differences, `(B, G, C)`: of G places in C channels.

    The channels of a place stay together, because an edge is seen in all of them.

    Args:
        sources: `(B, n)`, or mixtures of them.
        shape: Of one source, `(C, ...)`.

    Example:
        >>> edges(torch.tensor([[0.0, 1.0, 1.0, 5.0]]), (1, 4)).flatten()
        tensor([ 1.0000,  0.0000,  4.0000, -0.5000,  2.0000])
    """
    arrays = sources.reshape(-1, *shape)
    axes = range(2, arrays.ndim)
    slopes = [arrays.diff(dim=axis) for axis in axes if arrays.shape[axis] > 1]
    inner = [arrays.diff(n=2, dim=axis) for axis in axes if arrays.shape[axis] > 2]
    if len(inner) == len(axes):
        bends = [_centre(bend, axis, axes) for axis, bend in zip(axes, inner, strict=True)]
        slopes.append(torch.stack(bends).sum(0) / 2)
    return torch.cat([slope.flatten(2).transpose(1, 2) for slope in slopes], dim=1)


def entries(sources: Tensor) -> Tensor:
    """The entries themselves, `(B, d, 1)`: features behind a ReLU are sparse as they are."""
    return sources.unsqueeze(2)


def _centre(bends: Tensor, axis: int, axes: range) -> Tensor:
    """Cut the other axes to the places that have a neighbour on both sides."""
    for other in axes:
        if other != axis:
            bends = bends.narrow(other, 1, bends.shape[other] - 2)
    return bends
