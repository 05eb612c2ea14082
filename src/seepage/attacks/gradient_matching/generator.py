"""The seam for searching something else than the inputs themselves."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from seepage.core import Domain, Rng


class Generated(Protocol):
    """A way to make one batch from a flat vector of numbers, which are searched in its place."""

    @property
    def size(self) -> int:
        """How many numbers a row has."""

    def start(self, *, rng: Rng) -> Tensor:
        """Where a restart begins, `(size,)`."""

    def __call__(self, points: Tensor) -> Tensor:
        """The inputs `(..., B, *shape)` of rows `(..., size)`, valid and normalised.

        Differentiable, and a pure function of tensors that stay where they are, so that a step can
        be captured as a CUDA graph; what cannot be captured runs eagerly.
        """


class Generator(Protocol):
    """A value that makes batches of any size in a domain."""

    def bind(self, batch_size: int, domain: Domain, *, like: Tensor) -> Generated:
        """Get ready for one batch size, with the dtype and device of `like`."""
