"""The geometry of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Sides = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and dilation, one number per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def arguments(self) -> tuple[Sides, Sides, Sides, bool, Sides]:
        """In the order of torch's general convolution, which is not a transposed one here."""
        return self.stride, self.padding, self.dilation, False, (0,) * len(self.stride)

    def output_side(self, inputs: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """Spatial sizes of the output.

        Example:
            >>> Geometry((2, 2), (1, 1), (1, 1)).output_side((32, 32), (3, 3))
            (16, 16)
        """
        axes = zip(inputs, kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)
