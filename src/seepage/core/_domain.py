"""What an input is: the one place that knows what is special about a kind of input."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from seepage.core._likeness import HALF_A_STEP, ByEntry, Exactness, Likeness, Rounding

if TYPE_CHECKING:
    from torch import Tensor

    from seepage.core._rng import Rng


class Domain:
    """Abstract: the space that private inputs live in, and how inputs of this kind are judged.

    Inputs are in natural units (images in [0, 1]); networks see them normalised. Attacks search
    in normalised coordinates, as the papers do, and return natural units.

    By default an input is an array of numbers. A kind of your own is a frozen dataclass with a
    shape, bounds and a `check`, which overrides whatever else is special about it.
    """

    # What several inputs are called, such as "images".
    kind: ClassVar[str] = "inputs"
    # Name of the metric that tells best how much of an input came back.
    measure: ClassVar[str] = "psnr"
    # Whether entries are symbols, without order, distance or gradient.
    discrete: ClassVar[bool] = False
    # Whether neighbouring entries are alike, so that an input is shown as a picture.
    pictorial: ClassVar[bool] = False

    # Of one input, without the batch axis; the lowest and highest value that an entry can take.
    shape: tuple[int, ...]
    bounds: tuple[float, float]

    def check(self, inputs: Tensor) -> None:
        """Raise `InvalidValue` unless these are valid inputs `(B, *shape)`."""
        raise NotImplementedError

    def normalise(self, inputs: Tensor) -> Tensor:
        """Map natural units to what the network sees."""
        return inputs

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Undo `normalise`."""
        return inputs

    def project(self, inputs: Tensor) -> Tensor:
        """Return the nearest valid inputs, in natural units."""
        return inputs.clamp(*self.bounds)

    def sample(self, size: int, *, rng: Rng) -> Tensor:
        """Draw inputs uniformly within the bounds, the prior without any knowledge."""
        low, high = self.bounds
        return self.project(low + (high - low) * rng.uniform((size, *self.shape)))

    def make_up(self, size: int, *, rng: Rng) -> Tensor:
        """Draw inputs that look to a search like those of people."""
        return self.sample(size, rng=rng)

    def is_known(self, inputs: Tensor) -> bool:
        """Whether an attack gives every entry of these inputs, so that a network can read them."""
        return True

    def subtract(self, guess: Tensor, truth: Tensor) -> Tensor:
        """The error of every entry in float64; of symbols, 1.0 where they differ."""
        return guess.double() - truth.double()

    def typical(self, inputs: Tensor) -> Tensor:
        """The best single guess for an input if these are all that is known."""
        return self.project(inputs.mean(0))

    def exactness(self, others: Tensor, *, synthetic: bool = False) -> Exactness:
        """When a guess is an input exactly: by default, if it rounds to the same 8 bits.

        Args:
            others: Inputs of other people, which tell how finely values are given.
            synthetic: Whether the others are made up, so that they tell nothing.
        """
        low, high = self.bounds
        return Rounding(HALF_A_STEP * (high - low))

    def likeness(self, others: Tensor) -> Likeness:
        """How a guess is told from strangers; inputs of others tell how rare a value is."""
        return ByEntry(others)


@runtime_checkable
class _Readable(Protocol):
    """A domain whose inputs can be read: texts and tables."""

    def words(self, one: Tensor, /) -> tuple[str, ...]:
        """Write one input as words: those of a text, or one for each column of a table."""


def describe_inputs(domain: Domain, inputs: Tensor) -> tuple[tuple[str, ...], ...]:
    """Write each input as words; nothing if the domain is not readable."""
    return tuple(map(domain.words, inputs)) if isinstance(domain, _Readable) else ()
