"""Kernels that can be differentiated twice, which attacks must do, where torch prefers others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def differentiable_twice(*, recurrent: bool) -> Iterator[None]:
    """Take attention, and recurrent layers on a card, by plain sums and products.

    The fused kernels for attention have no second derivative, and cuDNN's recurrent layers not
    even a first one outside training mode. What is computed is the same up to rounding.

    Args:
        recurrent: Whether the network has recurrent layers.
    """
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    flash = cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    efficient = cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    fused = cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    # One by one: torch's own context manager takes as long as a small layer.
    cuda.enable_flash_sdp(False)
    cuda.enable_mem_efficient_sdp(False)
    cuda.enable_cudnn_sdp(False)
    try:
        if recurrent:
            with cudnn.flags(enabled=False):
                yield
        else:
            yield
    finally:
        cuda.enable_flash_sdp(flash)
        cuda.enable_mem_efficient_sdp(efficient)
        cuda.enable_cudnn_sdp(fused)


def is_recurrent(network: nn.Module) -> bool:
    """Whether a network has recurrent layers.

    Example:
        >>> is_recurrent(nn.Sequential(nn.GRU(2, 2))), is_recurrent(nn.Linear(2, 2))
        (True, False)
    """
    return any(isinstance(module, nn.RNNBase) for module in network.modules())
