"""How large an input is, before and after a convolution or a pooling."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.core import Domain
from seepage.core.errors import InvalidValue


def image_shape(model: str, domain: Domain) -> tuple[int, int, int]:
    """Return `(C, H, W)`, or raise `InvalidValue` if the domain is not one of images."""
    if len(domain.shape) != 3:
        raise InvalidValue(
            f"expected images (C, H, W) for {model}, got inputs of shape {domain.shape}; "
            "use mlp or single_conv for signals"
        )
    channels, height, width = domain.shape
    return channels, height, width


def convolved(
    sizes: Sequence[int], *, kernel: int, stride: int = 1, padding: int = 0
) -> tuple[int, ...]:
    """Spatial sizes after a convolution: floor((d + 2p - k) / s) + 1 along every axis.

    Example:
        >>> convolved((32, 32), kernel=5, stride=2, padding=2)
        (16, 16)
    """
    smallest = kernel - 2 * padding
    if min(sizes) < smallest:
        raise InvalidValue(
            f"expected at least {smallest} entries along every axis before a window of width "
            f"{kernel} with padding {padding}, but {tuple(sizes)} reach it; use larger inputs"
        )
    return tuple((size + 2 * padding - kernel) // stride + 1 for size in sizes)
