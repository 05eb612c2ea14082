"""The description of a search: terms, optimiser, schedule, starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from seepage.core.errors import InvalidValue
from seepage.numerics.schedules import Schedule
from seepage.search.generator import Generator
from seepage.search.optimisers import Optimiser
from seepage.search.priors import GroupConsistency
from seepage.search.starts import NormalStart, Start
from seepage.search.term import Term


@dataclass(frozen=True, kw_only=True)
class Search:
    """Minimise a sum of terms over candidates, from several starts.

    Args:
        terms: Fidelity and priors.
        optimiser: The rule to move by.
        schedule: The step size over time.
        steps: Steps of each restart.
        restarts: Independent starts, of which the one whose objective ends lowest is kept.
        start: Where a restart begins, if it is the inputs themselves that are searched.
        boxed: Whether to project on valid inputs after each step.
        seek_labels: Search for the labels too, as probabilities, even where they are known.
        median_every: Median-filter the candidates every so many steps; None for never.
        generator: What makes inputs of the numbers that are searched in their place, such as a
            `PriorNetwork`; None searches the inputs themselves.
        given_statistics: Normalise candidates by the private batch's statistics, where they are
            known, instead of by their own. The network is then told how bright and how contrasted
            the batch is, and no longer mixes candidates that are not right yet.
    """

    terms: tuple[Term, ...]
    optimiser: Optimiser
    schedule: Schedule
    steps: int
    restarts: int = 1
    start: Start = field(default_factory=NormalStart)
    boxed: bool = True
    seek_labels: bool = False
    median_every: int | None = None
    generator: Generator | None = None
    given_statistics: bool = False

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("steps", "restarts", "median_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValue(f"expected {name} >= 1, got {value!r}")
        if self.median_every is not None and self.generator is not None:
            raise InvalidValue(
                "median_every replaces pixels, which are not what is searched where there is a "
                "generator; give one of the two"
            )
        for term in self.terms:
            if not math.isfinite(term.weight):
                raise InvalidValue(f"expected a finite weight, got {term!r}")

    @property
    def grouped(self) -> bool:
        """Whether restarts see each other, so that those of a case must run together."""
        return any(GroupConsistency in _kinds(term) for term in self.terms)


def _kinds(term: Term | None) -> list[type]:
    """The class of a term and of the terms it wraps."""
    return [] if term is None else [type(term), *_kinds(getattr(term, "term", None))]
