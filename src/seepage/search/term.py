"""Candidates and the terms that score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from seepage.core import Domain, Observation, Task, Update


@dataclass(frozen=True, eq=False)
class Candidate:
    """Inputs being searched for, the labels they are assumed to have, and what they would share.

    The search runs in normalised coordinates, where the papers state their step sizes, boxes and
    priors; `inputs` gives natural units.

    Args:
        normalised: `(B, ...)`, as the network sees them.
        labels: `(B,)` classes or `(B, K)` probabilities.
        update: The update simulated at the candidate.
        domain: The space of the inputs.
        step: Steps taken so far, a scalar, for terms that change over time.
        consensus: Mean over the restarts of the same case, `(B, ...)`, detached.
        layers: What layers of the network read while the update was simulated, by name; not all
            simulations can tell.
    """

    normalised: Tensor
    labels: Tensor
    update: Update
    domain: Domain
    step: Tensor
    consensus: Tensor
    layers: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def inputs(self) -> Tensor:
        """The candidate in natural units."""
        return self.domain.denormalise(self.normalised)


class Term(Protocol):
    """One summand of the objective: a pure function of one candidate, safe under `vmap`.

    The engine simulates once per candidate and vectorises terms over restarts and cases, so a
    term reads `candidate.update` and never simulates itself.
    """

    @property
    def weight(self) -> float:
        """Its factor in the sum."""

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Return a scalar to be made small."""


@runtime_checkable
class ReadsLayers(Protocol):
    """A term that compares what layers read, so that the simulation can tell it on the way."""

    def reads(self, task: Task) -> Sequence[str]:
        """The names of those layers."""


@runtime_checkable
class Changing(Protocol):
    """A term that is another function at some steps than at the step before."""

    def changes(self, step: Tensor) -> Tensor:
        """Whether it is at this step, a scalar; the device must not be asked for it."""
