"""Numbers of each channel, beside activations."""

from __future__ import annotations

from torch import Tensor


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """`(R, C)` in a form that multiplies `(R, B, C, ...)`; `(C,)` is the same for all rows.

    Example:
        >>> import torch
        >>> per_channel(torch.zeros(2, 3), torch.zeros(2, 5, 3, 8, 8)).shape
        torch.Size([2, 1, 3, 1, 1])
    """
    lead = values.shape[:-1] if values.ndim > 1 else (1,)
    return values.reshape(*lead, 1, values.shape[-1], *(1,) * (like.ndim - 3))
