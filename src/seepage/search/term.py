"""Candidates and the terms that score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from seepage.core.observation import Observation
from seepage.core.task import Domain, Task
from seepage.core.update import Update


@dataclass(frozen=True, eq=False)
class Candidate:
    """Inputs being searched for, the labels they are assumed to have, and their update.

    The search runs in normalised coordinates, in which the papers state their step sizes, boxes and
    priors; `inputs` gives natural units.

    Args:
        normalised: The inputs as the network sees them, `(B, ...)`.
        labels: `(B,)` classes or `(B, K)` probabilities.
        update: The update simulated at the candidate.
        domain: The space of the inputs.
        step: Steps taken so far, a scalar, for terms that change over time.
        consensus: Mean over the restarts of the same case, `(B, ...)`, detached.
        layers: What layers of the network read during the simulation, by name; not all
            simulations return this.
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
        """The factor in the sum."""

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Return the scalar to minimise."""


@runtime_checkable
class ReadsLayers(Protocol):
    """A term that compares what layers read, which the simulation can return."""

    def reads(self, task: Task) -> Sequence[str]:
        """Return the names of those layers."""


@runtime_checkable
class Changing(Protocol):
    """A term that is a different function at some steps."""

    def changes(self, step: Tensor) -> Tensor:
        """Whether it changes at this step: a scalar that stays on the device."""
