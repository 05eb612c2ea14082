"""Whether images are photographs or the negatives of photographs."""

from __future__ import annotations

import torch
from torch import Tensor

# Log odds that an image is no negative, by a logistic regression without a constant on 20000
# photographs (CIFAR-10's training images) and their negatives, as papers/benchmarks/negatives.py
# fits them (results/negatives.json).
WEIGHTS = (-13.2, 69.8, 12.5, 7.5, 33.9)


def positive(values: Tensor) -> bool:
    """Whether images, all of one sign, are likelier to be photographs than negatives.

    Photographs are warm in colour, lit from above and bluer there, and dark but for highlights.
    Each of these is odd in the values, so that a negative has the opposite odds:

        sum_i  a <g> + b <x^3> + c <g t> + d <r> - e <r t>

    over images i, weighing `evidence`. What is not of three channels is taken to be rather dark.

    Args:
        values: `(B, ...)`, less the middle of their range, which is one wide.

    Example:
        >>> sky = torch.tensor([0.1, 0.2, 0.4]).reshape(1, 3, 1, 1).expand(1, 3, 4, 8)
        >>> earth = torch.tensor([0.0, -0.1, -0.2]).reshape(1, 3, 1, 1).expand(1, 3, 4, 8)
        >>> landscape = torch.cat([sky, earth], dim=2)
        >>> positive(landscape), positive(-landscape)
        (True, False)
    """
    if values.ndim != 4 or values.shape[1] != 3:
        return bool(values.sum() <= 0)
    found = evidence(values)
    return bool((found @ found.new_tensor(WEIGHTS)).sum() >= 0)


def evidence(values: Tensor) -> Tensor:
    """What tells each photograph from its negative, `(B, 5)`: the opposite of each for the other.

        <g>,   <x^3>,   <g t>,   <r>,   -<r t>

    Means <.> over the entries, g the channels' mean, r = red - blue, and t from 1 at the top to -1
    at the bottom.

    Args:
        values: `(B, 3, H, W)`, less the middle of their range, which is one wide.
    """
    height = torch.linspace(1, -1, values.shape[2]).to(values).unsqueeze(1)
    grey, warmth = values.mean(1), values[:, 0] - values[:, 2]
    kinds = (grey, values.pow(3), grey * height, warmth, -warmth * height)
    return torch.stack([kind.flatten(1).mean(1) for kind in kinds], dim=1)
