"""What an input is: its shape, its bounds and how the network wants it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from seepage.core.rng import Rng


class Domain(Protocol):
    """The space that private inputs live in.

    Inputs are in natural units (images in [0, 1]); networks see them normalised. Attacks search
    in normalised coordinates, as the papers do, and return natural units.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch axis."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value an entry can take, in natural units."""

    def normalise(self, inputs: Tensor) -> Tensor:
        """Map natural units to what the network sees."""

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Undo `normalise`."""

    def project(self, inputs: Tensor) -> Tensor:
        """Return the nearest valid inputs, in natural units."""

    def sample(self, size: int, *, rng: Rng) -> Tensor:
        """Draw inputs uniformly within the bounds: the prior of someone who knows nothing."""

    def check(self, inputs: Tensor) -> None:
        """Raise `InvalidValue` unless these are valid inputs `(B, *shape)`."""


@runtime_checkable
class Readable(Protocol):
    """A domain whose inputs people read, where those of others are looked at."""

    def words(self, one: Tensor, /) -> tuple[str, ...]:
        """One input as words, in order: those of a text, or one for each column of a table."""


def said(domain: Domain, inputs: Tensor) -> tuple[tuple[str, ...], ...]:
    """Each input as words; nothing where inputs are not read."""
    return tuple(map(domain.words, inputs)) if isinstance(domain, Readable) else ()
