"""Random crops and mirror images, for a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.errors import InvalidValue


@dataclass(frozen=True)
class CropAndFlip:
    """Shift images by up to `margin` pixels, with zeros coming in, and mirror half of them.

    References:
        He et al., 2016, Sec. 4.2 (he2016deep)
    """

    margin: int = 4

    def __post_init__(self) -> None:
        """Check the margin."""
        if self.margin < 0:
            raise InvalidValue(f"expected margin >= 0, got {self.margin!r}")

    def __call__(self, images: Tensor, *, rng: Rng) -> Tensor:
        """Augment images `(B, C, H, W)`."""
        if images.ndim != 4:
            shape = tuple(images.shape[1:])
            raise InvalidValue(f"{self} shifts images (C, H, W), got inputs of shape {shape}")
        height, width = images.shape[-2:]
        padded = torch.nn.functional.pad(images, (self.margin,) * 4)
        rows = self._shifts(images, height, rng=rng.fork("rows"))
        columns = self._shifts(images, width, rng=rng.fork("columns"))
        mirrored = rng.fork("mirror").uniform((len(images), 1), like=images) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        each = torch.arange(len(images), device=images.device)
        # Indices (B, H, W) around a slice put the channels last.
        chosen = padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return chosen.movedim(-1, 1)

    def _shifts(self, images: Tensor, length: int, *, rng: Rng) -> Tensor:
        """Where each image's pixels along one axis come from, `(B, length)`."""
        start = (rng.uniform((len(images), 1), like=images) * (2 * self.margin + 1)).long()
        return start + torch.arange(length, device=images.device)
