"""What can be said of a guess once it is held against the truth, or where there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from seepage.scoring import Scores

Plain = Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, eq=False)
class Judged:
    """A guess in the order of the people, with its scores.

    Args:
        people: Their numbers.
        guess: `(B, ...)`.
        scores: Metric to one value per person; empty where the truth is not known.
        baselines: The same for each guess that needs no update.
    """

    people: tuple[int, ...]
    guess: Tensor
    scores: Plain = field(default_factory=dict)
    baselines: Mapping[str, Plain] = field(default_factory=dict)


def plain(scores: Scores) -> Plain:
    """One value per person; NaN, which JSON cannot hold, becomes None."""
    return {
        name: tuple(None if math.isnan(v) else v for v in values.tolist())
        for name, values in scores.values.items()
    }
