"""A linear system as a constraint of a search: as a penalty, or kept at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.attacks.gradient_matching import Candidate, Optimiser
from seepage.attacks.gradient_matching.optimisers import Moment, State
from seepage.attacks.linear_systems.least_squares import nearest_solution
from seepage.attacks.linear_systems.operator import LinearSystem
from seepage.core import Observation


@dataclass(frozen=True, eq=False, kw_only=True)
class SystemResidual:
    """The squared residual of a linear system in one candidate: ||u x - v||^2.

    Args:
        weight: Factor in the objective.
        system: u, in the precision of the search.
        target: v.

    References:
        Chen and Campbell, 2022, Sec. 4, the unconstrained strategy (chen2022analysing)
    """

    weight: float
    system: LinearSystem
    target: Tensor

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Measure how far the candidate is from solving the system."""
        return (self.system.apply(candidate.normalised.flatten()) - self.target).square().sum()

    @property
    def held(self) -> dict[str, Tensor]:
        """The system's, which is of one case."""
        return _held(self.system, self.target)

    def holding(self, held: Mapping[str, Tensor]) -> SystemResidual:
        """The same term with the system of another case."""
        return replace(self, system=_holding(self.system, held), target=held["target"])


@dataclass(frozen=True, eq=False, kw_only=True)
class OnSolutions:
    """Another optimiser, after whose steps every point returns to the solutions of a system.

    Args:
        optimiser: The rule to move by.
        system: u, in the precision of the search; of each row if it has a leading axis.
        target: v.
        iterations: Of the projection; what is left over is taken up by the next step's.

    References:
        Chen and Campbell, 2022, Eq. 11 (chen2022analysing)
    """

    optimiser: Optimiser
    system: LinearSystem
    target: Tensor
    iterations: int = 10

    def start(self, points: Tensor) -> State:
        """That of the rule."""
        return self.optimiser.start(points)

    def step(
        self, points: Tensor, values: Tensor, gradients: Tensor, state: State, moment: Moment
    ) -> tuple[Tensor, State]:
        """Move, then project."""
        moved, state = self.optimiser.step(points, values, gradients, state, moment)
        projected = nearest_solution(self.system, self.target, moved, iterations=self.iterations)
        return projected, state

    @property
    def held(self) -> dict[str, Tensor]:
        """The system's, which is of one case."""
        return _held(self.system, self.target)

    def holding(self, held: Mapping[str, Tensor]) -> OnSolutions:
        """The same rule with the system of every row."""
        return replace(self, system=_holding(self.system, held), target=held["target"])


def _held(system: LinearSystem, target: Tensor) -> dict[str, Tensor]:
    known = {} if system.known is None else {"known": system.known}
    return {"delta": system.delta, "target": target, **known}


def _holding(system: LinearSystem, held: Mapping[str, Tensor]) -> LinearSystem:
    return replace(system, delta=held["delta"], known=held.get("known"))
