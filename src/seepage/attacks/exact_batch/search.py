"""Rounds of a search, until the forward pass agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch

from seepage.attacks.exact_batch.candidates import Candidates, none_yet
from seepage.attacks.exact_batch.factors import Factors
from seepage.attacks.exact_batch.separation import Layer, Separation, separate, settle
from seepage.core import Rng
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.progress import report


class DirectionSearch(Protocol):
    """Looks for the directions in the span that belong to a person, one round at a time.

    Args:
        quick_up_to: The batch size up to which it is worth being tried before others.
        patience: Rounds that change nothing, in a row, after which it gives up.
    """

    quick_up_to: ClassVar[float]
    patience: ClassVar[float]

    @property
    def rounds(self) -> int:
        """How many rounds at most."""

    def probability(self, factors: Factors) -> float:
        """How likely it is to find everybody here, before it is tried."""

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """More candidates, given the best so far."""


def find_everybody(
    searches: Sequence[DirectionSearch], factors: Factors, layer: Layer, *, rng: Rng
) -> tuple[Separation, tuple[float, ...]]:
    """Run searches in order until one separates the batch consistently.

    Returns:
        The most consistent separation, and after each round the share of the gradient that comes
        through silent neurons, averaged over people, which is zero where everybody is right.
    """
    best: Separation | None = None
    trail: list[float] = []
    for search in searches:
        found, idle = none_yet(factors.span), 0
        for number in range(search.rounds):
            before = found.directions
            key = rng.fork(type(search).__name__, number)
            found = found.joined(search(factors, found, rng=key)).independent()
            report(number + 1, search.rounds, 1.0 if best is None else best.leak)
            idle = idle + 1 if torch.equal(found.directions, before) else 0
            if idle > search.patience:
                break
            if idle or len(found) < factors.people:
                continue
            separation = separate(factors, layer, found)
            if best is None or separation.leak < best.leak:
                best = separation
            trail.append(best.leak)
            settled = settle(factors, layer, separation)
            if settled.consistent(factors.noise):
                return settled, (*trail, settled.leak)
    if best is None:
        raise NotApplicable(
            f"{factors.people} independent directions were not found in the span of the gradient; "
            "exact inversion needs a wider layer or a smaller batch"
        )
    return best, tuple(trail)


def at_least_one(**numbers: int) -> None:
    """Refuse the options of a search that would not search."""
    for name, value in numbers.items():
        if value < 1:
            raise InvalidValue(f"expected {name} >= 1, got {value!r}")
