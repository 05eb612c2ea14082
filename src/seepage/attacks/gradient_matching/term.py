"""The shape that fidelity and priors share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.core import Observation, Task


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
