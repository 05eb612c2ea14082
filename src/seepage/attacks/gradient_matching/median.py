"""The median filter."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue


def median_filter(normalised: Tensor, *, size: int = 3, axes: int = 2) -> Tensor:
    """Replace every entry by the median of the window around it, channel by channel.

    Borders are mirrored about the outermost entry, which is not repeated: `reflect` in torch,
    `mirror` in scipy.

    Args:
        normalised: Images `(..., C, H, W)`, or signals `(..., C, L)` with `axes=1`.
        size: Width of the window, odd.
        axes: How many trailing axes it spans.

    Example:
        >>> spike = torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0])
        >>> median_filter(spike, axes=1).tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0]

    References:
        Geiping et al., 2020, Sec. 3.1 (geiping2020inverting)
    """
    if size < 1 or size % 2 == 0:
        raise InvalidValue(f"expected an odd size >= 1, got {size!r}")
    padded = normalised
    for axis in range(-axes, 0):
        mirrored = _mirrored(normalised.shape[axis], size // 2, normalised.device)
        padded = padded.index_select(axis, mirrored)
    windows = padded
    for axis in range(normalised.ndim - axes, normalised.ndim):
        windows = windows.unfold(axis, size, 1)
    return windows.flatten(normalised.ndim).median(-1).values


def _mirrored(length: int, margin: int, device: torch.device) -> Tensor:
    """Indices of an axis continued by `margin` entries at both ends."""
    period = max(2 * (length - 1), 1)
    index = torch.arange(-margin, length + margin, device=device) % period
    return torch.minimum(index, period - index) if length > 1 else index
