"""Convolution as matrix products over the windows of images.

Matrices have the channels last: a pixel's channels lie side by side in memory, so windows are laid
out by copying whole runs, and images that are channels-last need no copy at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.rows.geometry import Geometry


def laid_out(images: Tensor) -> Tensor:
    """Images, or weights, with their channels last on a card, where convolutions want them so."""
    if images.ndim == 4 and images.is_cuda:
        return images.contiguous(memory_format=torch.channels_last)
    return images


def split_rows(tensor: Tensor, count: int) -> Tensor:
    """`(R B, ...)` to `(R, B, ...)`, without a copy."""
    return tensor.reshape(count, -1, *tensor.shape[1:])


def windows(images: Tensor, kernel: Sequence[int], geometry: Geometry) -> Tensor:
    """The window under every output position, `(N, H' W', k k C)`.

    `torch.nn.functional.unfold` does the same with one kernel launch per image.
    """
    down, right = geometry.padding
    padded = torch.nn.functional.pad(images, (right, right, down, down))
    padded = padded.contiguous(memory_format=torch.channels_last)
    apart = padded
    for axis, (k, step, gap) in enumerate(
        zip(kernel, geometry.stride, geometry.dilation, strict=True), start=2
    ):
        apart = apart.unfold(axis, gap * (k - 1) + 1, step)[..., ::gap]
    return apart.permute(0, 2, 3, 4, 5, 1).reshape(len(images), -1, prod(kernel) * images.shape[1])


def as_matrix(images: Tensor, count: int) -> Tensor:
    """Images `(R B, C, H, W)` as `(R, B H W, C)`."""
    return split_rows(images.movedim(1, -1), count).flatten(1, 3)


def as_images(matrix: Tensor, side: Sequence[int]) -> Tensor:
    """Undo `as_matrix`: `(R, B H W, C)` to channels-last images `(R B, C, H, W)`."""
    return matrix.reshape(-1, *side, matrix.shape[-1]).movedim(-1, 1)


def can_flip(weights: Tensor, geometry: Geometry) -> bool:
    """Whether the gradient by the inputs is itself a plain convolution: at stride 1."""
    axes = zip(weights.shape[3:], geometry.padding, geometry.dilation, strict=True)
    return set(geometry.stride) == {1} and all(d * (k - 1) >= p for k, p, d in axes)


def flipped(weights: Tensor, geometry: Geometry) -> tuple[Geometry, Tensor]:
    """The convolution that is the gradient by the inputs: its geometry and `(R, k k O, C)`."""
    axes = zip(weights.shape[3:], geometry.padding, geometry.dilation, strict=True)
    padding = tuple(d * (k - 1) - p for k, p, d in axes)
    matrix = weights.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3)
    return Geometry(geometry.stride, padding, geometry.dilation), matrix
