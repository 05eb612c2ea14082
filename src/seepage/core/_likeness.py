"""How inputs are compared: when a guess is exact, and how it is told from strangers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# What is compared of inputs, by measure.
Features = Mapping[str, Tensor]
# Similarities `(G, C)` of guesses and candidates, by measure: 1 for what looks the same.
Table = Mapping[str, Tensor]
# Top, bottom, left and right of the part that is compared, as shares of the sides.
Frame = tuple[float, float, float, float]
WHOLE: Frame = (0.0, 1.0, 0.0, 1.0)
# A share of the range of values: a guess that is nearer rounds to the same 8 bits.
HALF_A_STEP = 0.5 / 255
TINY = 1e-12


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


class Likeness:
    """Abstract: how alike a guess and a candidate look, forgiving what an eye forgives.

    By default inputs are compared as they are, without other views of them.
    """

    # How to read the similarities that `table` gives, by name.
    measures: Mapping[str, Measure]

    def table(self, guesses: Tensor, candidates: Tensor) -> Table:
        """Similarity of every guess `(G, ...)` to every candidate `(C, ...)`."""
        raise NotImplementedError

    def embed(self, candidates: Tensor) -> Features:
        """Candidates as `compare` wants them, to be computed once for many guesses."""
        return {"inputs": candidates.detach().cpu()}

    def show(self, guesses: Tensor) -> tuple[View, ...]:
        """Guesses in every way in which `compare` looks at them, as they are first."""
        return (View({"inputs": guesses.detach().cpu()}),)

    def compare(
        self, shown: Sequence[View], candidates: Features, *, middle: Tensor | None = None
    ) -> Table:
        """Similarity of every guess to every candidate in the best view.

        Args:
            shown: The guesses.
            candidates: As `embed` gives them.
            middle: Mean edges of all candidates, if these are a part of them.
        """
        return self.table(shown[0].features["inputs"], candidates["inputs"])


class Exactness:
    """Abstract: when a guess is an input exactly."""

    def compare(self, guess: Tensor, candidates: Tensor) -> Tensor:
        """Whether a guess is each of the candidates `(C, ...)`, exactly."""
        raise NotImplementedError

    def count_alike(self, truth: Tensor) -> float:
        """Among how many inputs luck would have to choose, to guess just this one."""
        return math.inf


@dataclass(frozen=True)
class Rounding(Exactness):
    """Numbers are exact if none is off by the tolerance."""

    tolerance: float

    def compare(self, guess: Tensor, candidates: Tensor) -> Tensor:
        """Whether a guess is each of the candidates."""
        return (guess.double() - candidates.double()).abs().flatten(1).amax(1) < self.tolerance


@dataclass(frozen=True, eq=False)
class ByEntry(Likeness):
    """Numbers are compared in units of their spread over the inputs of others."""

    others: Tensor
    measures = {  # noqa: RUF012 - never changed
        "entries": Measure(seen=True, near=0.98),
        "values": Measure(enough=(0.8, 0.95), copy=0.95),
    }

    @cached_property
    def _spread(self) -> tuple[Tensor, Tensor]:
        others = self.others.float().flatten(1)
        spread = others.std(0).nan_to_num(0.0)
        return others.mean(0), torch.where(spread > 0, spread, torch.ones_like(spread))

    def table(self, guesses: Tensor, candidates: Tensor) -> Table:
        """Absolute correlation of entries; of rows `(D,)` also how near they are on average.

        An entry is as near as 1 if it is equal, and 0 from one deviation apart on.
        """
        middle, scale = self._spread
        first, second = (values.float().flatten(1) for values in (guesses, candidates))
        rows = [(torch.nan_to_num(v) - middle) / scale for v in (first, second)]
        ours, theirs = (row / (row.norm(dim=1, keepdim=True) + TINY) for row in rows)
        found = {"entries": (ours @ theirs.T).abs()}
        if candidates.ndim == 2:
            known = torch.nan_to_num(first, nan=math.inf)
            near = [(1 - (row - second).abs() / scale).clamp(min=0).mean(1) for row in known]
            found["values"] = torch.stack(near)
        return found
