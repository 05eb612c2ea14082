"""What an input is: the one place that knows what is special about a kind of input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from seepage.core.likeness import Exactness, Likeness
    from seepage.core.rng import Rng


@runtime_checkable
class Domain(Protocol):
    """The space that private inputs live in, and how inputs of this kind are judged.

    Inputs are in natural units (images in [0, 1]); networks see them normalised. Attacks search
    in normalised coordinates, as the papers do, and return natural units.

    `seepage.domains.Kind` has defaults for everything but the shape, the bounds and the check.
    """

    @property
    def kind(self) -> str:
        """What several inputs are called, such as "images"."""

    @property
    def measure(self) -> str:
        """Name of the metric that tells best how much of an input came back."""

    @property
    def discrete(self) -> bool:
        """Whether entries are symbols, without order, distance or gradient."""

    @property
    def pictorial(self) -> bool:
        """Whether neighbouring entries are alike, so that an input is shown as a picture."""

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
        """Draw inputs uniformly within the bounds, the prior without any knowledge."""

    def make_up(self, size: int, *, rng: Rng) -> Tensor:
        """Draw inputs that look like real ones to a search, as far as nobody's are needed."""

    def check(self, inputs: Tensor) -> None:
        """Raise `InvalidValue` unless these are valid inputs `(B, *shape)`."""

    def is_known(self, inputs: Tensor) -> bool:
        """Whether an attack gives every entry of these inputs, so that a network can read them."""

    def subtract(self, guess: Tensor, truth: Tensor) -> Tensor:
        """The error of every entry in float64; of symbols, 1.0 where they differ."""

    def typical(self, inputs: Tensor) -> Tensor:
        """The best single guess for an input if these are all that is known."""

    def exactness(self, others: Tensor, *, synthetic: bool = False) -> Exactness:
        """When a guess is an input exactly.

        Args:
            others: Inputs of other people, which tell how finely values are given.
            synthetic: Whether the others are made up, so that they tell nothing.
        """

    def likeness(self, others: Tensor) -> Likeness:
        """How a guess is told from strangers; inputs of others tell how rare a value is."""


@runtime_checkable
class _Readable(Protocol):
    """A domain whose inputs can be read: texts and tables."""

    def words(self, one: Tensor, /) -> tuple[str, ...]:
        """Write one input as words: those of a text, or one for each column of a table."""


def describe_inputs(domain: Domain, inputs: Tensor) -> tuple[tuple[str, ...], ...]:
    """Write each input as words; nothing if the domain is not readable."""
    return tuple(map(domain.words, inputs)) if isinstance(domain, _Readable) else ()
