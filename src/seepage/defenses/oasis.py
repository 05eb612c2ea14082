"""Augmentation as a defense: every input is trained on together with its rotations and flips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Batch, PreparedBatch, Rng
from seepage.core.errors import InvalidValue
from seepage.core.protocols import Stage
from seepage.defenses.chain import OnInputs


@dataclass(frozen=True, repr=False)
class Oasis(OnInputs):
    """Add to the batch every image turned by 90, 180 and 270 degrees, mirrored, or both.

    Against servers that plant weights to isolate one input: an input and its copies excite the same
    neurons, so that what is isolated is their sum. There is no randomness, and a server that knows
    of the flips mirrors its own candidate alike. With the rotations, a candidate and its turns give
    the same update, a search ends turned or between turns, and not simulating them brought back
    more.

    Args:
        rotations: Add the three turned images; they must be square.
        flips: Add the images mirrored left to right and top to bottom.

    Example:
        >>> Oasis(flips=True)
        Oasis(flips=True)

    Deviations:
        The paper also tries small rotations and shearing, which need interpolation.

    References:
        Jeter et al., 2024 (jeter2024oasis)
    """

    stage: ClassVar[Stage] = "data"

    rotations: bool = field(default=True, kw_only=True)
    flips: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a defense that adds nothing."""
        if not (self.rotations or self.flips):
            raise InvalidValue("expected rotations, flips or both, got neither; use chain()")

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Augment; there is no randomness."""
        return self.augment(prepared)

    def prepare_expected(self, prepared: PreparedBatch) -> PreparedBatch:
        """Augment, unless that would leave open which way up an image is."""
        return prepared if self.rotations else self.augment(prepared)

    def augment(self, prepared: PreparedBatch) -> PreparedBatch:
        """Add the copies; what is sought is still the batch without them."""
        inputs = prepared.batch.inputs
        self._check(inputs)
        copies = [inputs, *(view(inputs) for view in self._views())]
        labels = torch.cat([prepared.batch.labels] * len(copies))
        return replace(prepared, batch=Batch(torch.cat(copies), labels))

    def _views(self) -> list[Callable[[Tensor], Tensor]]:
        turned = [partial(torch.rot90, k=quarters, dims=(-2, -1)) for quarters in (1, 2, 3)]
        mirrored = [partial(torch.flip, dims=(axis,)) for axis in (-1, -2)]
        return [*turned * self.rotations, *mirrored * self.flips]

    def _check(self, inputs: Tensor) -> None:
        if inputs.ndim != 4:
            shape = tuple(inputs.shape[1:])
            raise InvalidValue(f"{self} turns images (C, H, W), got inputs of shape {shape}")
        if self.rotations and inputs.shape[-1] != inputs.shape[-2]:
            height, width = inputs.shape[-2:]
            raise InvalidValue(
                f"{self} turns square images, got {height} x {width}; use "
                "Oasis(rotations=False, flips=True)"
            )
