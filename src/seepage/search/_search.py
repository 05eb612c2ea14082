"""The description of a search: terms, optimiser, schedule, starts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.errors import InvalidValue, UnknownName, require_at_least, require_positive
from seepage.numerics._schedules import Schedule
from seepage.search._generator import Generator
from seepage.search._objective import Layout, Term
from seepage.search._optimisers import Optimiser
from seepage.search._priors import GroupConsistency


class Start(Protocol):
    """A rule for the first point."""

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Return the first point `(D,)`, with the dtype and device of `like`."""


@dataclass(frozen=True)
class NormalStart:
    """Normal noise around zero, the mean input, in normalised coordinates.

    Args:
        spread: Its standard deviation; 1 in the papers. Less of it has to be searched away again.

    References:
        Zhu et al., 2019 (zhu2019deep); Geiping et al., 2020 (geiping2020inverting)
    """

    spread: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        require_positive(spread=self.spread)

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Draw every entry."""
        return _point(self.spread * rng.normal(layout.shape, like=like), layout, rng)


@dataclass(frozen=True)
class UniformStart:
    """Uniform within the bounds of the domain, in natural units: U(0, 1) for images.

    Deviations:
        Label logits are N(0, 1) as everywhere here; the paper draws them from U(0, 1) too.

    References:
        Qian and Hansen, 2020, Algorithm 2 (qian2020what)
    """

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Draw every entry."""
        natural = layout.domain.sample(layout.batch_size, rng=rng).to(like)
        return _point(layout.domain.normalise(natural), layout, rng)


@dataclass(frozen=True, eq=False, repr=False)
class WarmStart:
    """The inputs that another attack found.

    Args:
        inputs: The `inputs` of a `Reconstruction`, `(B, ...)`, in natural units.
        spread: Standard deviation of normal noise added in normalised coordinates, which makes
            restarts differ.

    Example:
        >>> WarmStart(torch.zeros(1, 1, 2, 2))
        WarmStart((1, 1, 2, 2), 66687aad, spread=0.0)
    """

    inputs: Tensor
    spread: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        require_at_least(0, spread=self.spread)

    def __repr__(self) -> str:
        """Name shape and content, so that records tell two warm starts apart."""
        content = self.inputs.detach().cpu().double().contiguous().numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()[:8]
        return f"WarmStart({tuple(self.inputs.shape)}, {digest}, spread={self.spread!r})"

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Normalise the inputs and add the noise."""
        if tuple(self.inputs.shape) != layout.shape:
            raise InvalidValue(
                f"expected a warm start of shape {layout.shape}, got {tuple(self.inputs.shape)}; "
                "was it found for another batch?"
            )
        normalised = layout.domain.normalise(self.inputs.detach().to(like))
        noise = rng.normal(layout.shape, like=like)
        return _point(normalised + self.spread * noise, layout, rng)


def generated_point(layout: Layout, *, rng: Rng) -> Tensor:
    """The start of a generator, joined with label logits if the layout has any."""
    assert layout.generated is not None
    return _point(layout.generated.start(rng=rng), layout, rng)


def _point(normalised: Tensor, layout: Layout, rng: Rng) -> Tensor:
    """Join the inputs with label logits, if the layout has any."""
    flat = normalised.flatten()
    count = layout.size - len(flat)
    return torch.cat([flat, rng.fork("labels").normal((count,), like=flat)]) if count else flat


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
