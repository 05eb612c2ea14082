"""What the difference between two entries is."""

from __future__ import annotations

from torch import Tensor


def apart(guess: Tensor, truth: Tensor) -> Tensor:
    """Guess minus truth in float64; of tokens, which have no distance, 1.0 where they differ.

    Example:
        >>> import torch
        >>> apart(torch.tensor([7, 8]), torch.tensor([7, 3])).tolist()
        [0.0, 1.0]
    """
    if truth.is_floating_point():
        return guess.double() - truth.double()
    return (guess != truth).double()
