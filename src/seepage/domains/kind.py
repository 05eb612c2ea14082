"""What inputs are unless their kind says otherwise: numbers, compared as numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.likeness import Exactness, Features, Likeness, Measure, Table, View

# A share of the range of values: a guess that is nearer rounds to the same 8 bits.
HALF_A_STEP = 0.5 / 255
_TINY = 1e-12


class Kind:
    """Abstract: a domain of numbers without normalisation.

    A kind of input of your own needs a shape, bounds, `check` and a `sample`; override whatever
    else is special about it.
    """

    kind: ClassVar[str] = "inputs"
    measure: ClassVar[str] = "psnr"
    discrete: ClassVar[bool] = False
    pictorial: ClassVar[bool] = False

    shape: tuple[int, ...]
    bounds: tuple[float, float]

    def normalise(self, inputs: Tensor) -> Tensor:
        """Let the network see natural units."""
        return inputs

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Undo `normalise`."""
        return inputs

    def project(self, inputs: Tensor) -> Tensor:
        """Clamp to the bounds."""
        return inputs.clamp(*self.bounds)

    def sample(self, size: int, *, rng: Rng) -> Tensor:
        """Draw uniform noise within the bounds, `(size, *shape)`."""
        low, high = self.bounds
        return self.project(low + (high - low) * rng.uniform((size, *self.shape)))

    def make_up(self, size: int, *, rng: Rng) -> Tensor:
        """Draw noise, as `sample` does."""
        return self.sample(size, rng=rng)

    def is_known(self, inputs: Tensor) -> bool:
        """Numbers are always given."""
        return True

    def subtract(self, guess: Tensor, truth: Tensor) -> Tensor:
        """Guess minus truth in float64."""
        return guess.double() - truth.double()

    def typical(self, inputs: Tensor) -> Tensor:
        """The mean, made a valid input."""
        return self.project(inputs.mean(0))

    def exactness(self, others: Tensor, *, synthetic: bool = False) -> Exactness:
        """A guess is exact if it rounds to the same 8 bits of the range."""
        low, high = self.bounds
        return _Rounding(HALF_A_STEP * (high - low))

    def likeness(self, others: Tensor) -> Likeness:
        """Compare entry by entry, scaled by how much each varies among others."""
        return ByEntry(_MEASURES, partial(_compare_entries, public=others.float().flatten(1)))


@dataclass(frozen=True)
class _Rounding:
    """Numbers are exact if none is off by the tolerance."""

    tolerance: float

    def compare(self, guess: Tensor, candidates: Tensor) -> Tensor:
        """Whether a guess is each of the candidates."""
        apart = (guess.double() - candidates.double()).abs().flatten(1).amax(1)
        return apart < self.tolerance

    def count_alike(self, truth: Tensor) -> float:
        """Luck finds no array of numbers."""
        return math.inf


@dataclass(frozen=True, eq=False)
class ByEntry:
    """Similarities of inputs as they are, without other views of them.

    Args:
        measures: How to read the similarities.
        table: Guesses and candidates to similarities.
    """

    measures: Mapping[str, Measure]
    table: Callable[[Tensor, Tensor], Table]

    def embed(self, candidates: Tensor) -> Features:
        """The candidates themselves."""
        return {"inputs": candidates.detach().cpu()}

    def show(self, guesses: Tensor) -> tuple[View, ...]:
        """The guesses themselves."""
        return (View({"inputs": guesses.detach().cpu()}),)

    def compare(
        self, shown: Sequence[View], candidates: Features, *, middle: Tensor | None = None
    ) -> Table:
        """Similarity of every guess to every candidate."""
        return self.table(shown[0].features["inputs"], candidates["inputs"])


_MEASURES: Mapping[str, Measure] = {
    "entries": Measure(seen=True, near=0.98),
    "values": Measure(enough=(0.8, 0.95), copy=0.95),
}


def _compare_entries(guesses: Tensor, candidates: Tensor, public: Tensor) -> Table:
    """Correlation of entries; of rows `(D,)` also how near the numbers are."""
    spread = public.std(0).nan_to_num(0.0)
    scale = torch.where(spread > 0, spread, torch.ones_like(spread))
    first, second = (values.float().flatten(1) for values in (guesses, candidates))
    found = {"entries": _correlate(first, second, public.mean(0), scale)}
    if candidates.ndim == 2:
        found["values"] = _compare_values(first, second, scale)
    return found


def _correlate(guesses: Tensor, candidates: Tensor, middle: Tensor, scale: Tensor) -> Tensor:
    """Absolute correlation of entries scaled by their spread over public inputs."""
    rows = [(torch.nan_to_num(v) - middle) / scale for v in (guesses, candidates)]
    first, second = (row / (row.norm(dim=1, keepdim=True) + _TINY) for row in rows)
    alike: Tensor = first @ second.T
    return alike.abs()


def _compare_values(guesses: Tensor, candidates: Tensor, scale: Tensor) -> Tensor:
    """Mean over entries of how near they are: 1 if equal, 0 from one deviation apart on."""
    guesses = torch.nan_to_num(guesses, nan=math.inf)
    near = [(1 - (row - candidates).abs() / scale).clamp(min=0).mean(1) for row in guesses]
    return torch.stack(near)
