"""The description of a search: terms, optimiser, schedule, starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from seepage.core.errors import InvalidValue, UnknownName, require_at_least
from seepage.numerics.schedules import Schedule
from seepage.search.generator import Generator
from seepage.search.optimisers import Optimiser
from seepage.search.priors import GroupConsistency
from seepage.search.starts import NormalStart, Start
from seepage.search.term import Term

T = TypeVar("T")


def pick_setting(setting: str | None, known: Mapping[str, T], *, default: T) -> T:
    """What a paper's setting of this name stands for; the default for None.

    Example:
        >>> pick_setting("paper", {"paper": 300}, default=100)
        300
    """
    if setting is None:
        return default
    if setting not in known:
        raise UnknownName("setting", setting, known)
    return known[setting]


@dataclass(frozen=True, kw_only=True)
class Search:
    """Minimise a sum of terms over candidates, from several starts.

    Args:
        terms: Fidelity and priors.
        optimiser: The update rule.
        schedule: The step size over time.
        steps: Steps of each restart.
        restarts: Independent starts; the one with the lowest objective is kept.
        start: The start of a restart; unused with a generator.
        boxed: Whether to project on valid inputs after each step.
        seek_labels: Search for the labels too, as probabilities, even if they are known. Targets
            that are numbers are searched for whenever they are not known.
        median_every: Median-filter the candidates every so many steps; None for never.
        generator: Makes inputs from the numbers that are searched for, such as a `PriorNetwork`;
            None searches for the inputs themselves.
        given_statistics: Normalise candidates by the private batch's statistics, if known, instead
            of their own. The network then knows the brightness and contrast of the batch, and
            candidates that are not right yet do not influence each other.
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
        counts = {"steps": self.steps, "restarts": self.restarts}
        require_at_least(1, **counts, median_every=self.median_every)
        if self.median_every is not None and self.generator is not None:
            raise InvalidValue(
                "median_every filters the searched inputs, but a generator searches for other "
                "numbers; give one of the two"
            )
        for term in self.terms:
            if not math.isfinite(term.weight):
                raise InvalidValue(f"expected a finite weight, got {term!r}")

    @property
    def grouped(self) -> bool:
        """Whether restarts see each other, so that all restarts of a case must run together."""
        return any(GroupConsistency in _kinds(term) for term in self.terms)


def _kinds(term: Term | None) -> list[type]:
    """The class of a term and of the terms it wraps."""
    return [] if term is None else [type(term), *_kinds(getattr(term, "term", None))]
