"""How inputs of a kind are compared: when a guess is exact, and how it is told from strangers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

# What is compared of inputs, by measure.
Features = Mapping[str, Tensor]
# Similarities `(G, C)` of guesses and candidates, by measure: 1 for what looks the same.
Table = Mapping[str, Tensor]
# Top, bottom, left and right of the part that is compared, as shares of the sides.
Frame = tuple[float, float, float, float]
WHOLE: Frame = (0.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class View:
    """One way to look at guesses."""

    features: Features
    frame: Frame = WHOLE


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How similarities by one measure are read.

    Args:
        weight: Beside the other measures of a kind.
        least: Smallest deviation over candidates that counts.
        enough: Similarity from which on a person is recognisable: among strangers who are like the
            person, and among others, of whom only a near copy stands out.
        seen: Whether a guess is recognisable if it is as similar as a noisy input is to itself.
        near: Similarity of a near copy, where `enough` does not say.
        copy: Similarity that a guess must have which is right to 8 bits of its range.
    """

    weight: float = 1.0
    least: float = 1e-9
    enough: tuple[float, float] | None = None
    seen: bool = False
    near: float | None = None
    copy: float | None = None


class Likeness(Protocol):
    """How alike a guess and a candidate look, forgiving what an eye forgives."""

    @property
    def measures(self) -> Mapping[str, Measure]:
        """How to read the similarities, by the name of the measure."""

    def embed(self, candidates: Tensor) -> Features:
        """Candidates `(C, ...)` as `compare` wants them, to be computed once for many guesses."""

    def show(self, guesses: Tensor) -> tuple[View, ...]:
        """Guesses `(G, ...)` in every way in which `compare` looks at them, as they are first."""

    def compare(
        self, shown: Sequence[View], candidates: Features, *, middle: Tensor | None = None
    ) -> Table:
        """Similarity of every guess to every candidate in the best view.

        Args:
            shown: The guesses.
            candidates: As `embed` gives them.
            middle: Mean edges of all candidates, if these are a part of them.
        """


class Exactness(Protocol):
    """When a guess is an input exactly."""

    def compare(self, guess: Tensor, candidates: Tensor) -> Tensor:
        """Whether a guess is each of the candidates `(C, ...)`, exactly."""

    def count_alike(self, truth: Tensor) -> float:
        """Among how many inputs luck would have to choose, to guess just this one."""
