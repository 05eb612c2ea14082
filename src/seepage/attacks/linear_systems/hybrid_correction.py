"""The search that corrects the solution of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.attacks.linear_systems.linear_system import LinearSystem
from seepage.attacks.linear_systems.recursion import Step
from seepage.core import Observation
from seepage.numerics.least_squares import nearest_solution
from seepage.search import (
    Adam,
    Candidate,
    Constant,
    Engine,
    GradientMatching,
    LayerwiseCosine,
    Optimiser,
    Search,
    Term,
    TotalVariation,
    WarmStart,
)
from seepage.search.optimisers import Moment, State


@dataclass(frozen=True, eq=False, kw_only=True)
class _SystemResidual:
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

    def with_held(self, held: Mapping[str, Tensor]) -> _SystemResidual:
        """The same term with the system of another case."""
        return replace(self, system=_holding(self.system, held), target=held["target"])


@dataclass(frozen=True, eq=False, kw_only=True)
class _OnSolutions:
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

    def with_held(self, held: Mapping[str, Tensor]) -> _OnSolutions:
        """The same rule with the system of every row."""
        return replace(self, system=_holding(self.system, held), target=held["target"])


def _held(system: LinearSystem, target: Tensor) -> dict[str, Tensor]:
    known = {} if system.known is None else {"known": system.known}
    return {"delta": system.delta, "target": target, **known}


def _holding(system: LinearSystem, held: Mapping[str, Tensor]) -> LinearSystem:
    return replace(system, delta=held["delta"], known=held.get("known"))


@dataclass(frozen=True, kw_only=True)
class _LeastNorm:
    """The mean square of the candidate in normalised coordinates, where R-GAP's norm is least.

        mean x_j^2

    Total variation hardly sees slow changes over an image and none of its channels' means. Where
    the linear system leaves them open as well, a search drifts, and this holds it.

    Args:
        weight: Factor in the objective.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive), on the solution of least norm
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Average the squares."""
        return candidate.normalised.square().mean()


@dataclass(frozen=True, kw_only=True)
class Correction:
    """How far and with which weights the solution of one layer is corrected.

    Args:
        steps: Of the search.
        matching: mu1, of the cosine of each tensor from this layer on.
        tv: mu2, of the total variation.
        system: mu3, of the linear system's residual, where it is a soft constraint.
        norm: Of the mean square, which decides what the others leave open.
    """

    steps: int
    matching: float
    tv: float
    system: float
    norm: float

    def attack(
        self, tail: Observation, step: Step, *, hard: bool, step_size: float, engine: Engine
    ) -> GradientMatching:
        """Gradient matching from the solution of one layer on, where there is anything to match.

        Args:
            tail: What is seen of this layer and those behind it.
            step: What is known of the layer.
            hard: Whether candidates stay solutions of its system.
            step_size: Of Adam.
            engine: How it is computed.
        """
        like, domain = next(iter(tail.update)), tail.task.domain
        system, target = step.system.to(like), step.target.to(like)
        terms: tuple[Term, ...] = (TotalVariation(weight=self.tv), _LeastNorm(weight=self.norm))
        optimiser: Optimiser = Adam(step_size=step_size, sign="none")
        if hard:
            optimiser = _OnSolutions(optimiser=optimiser, system=system, target=target)
        else:
            terms += (_SystemResidual(weight=self.system, system=system, target=target),)
        # Of solutions that explain the update alike the cosine says nothing, but what rounding
        # leaves of it is steeper than the total variation and sets the pace of Adam.
        if not (hard and step.settled):
            # A mean over the tensors, of which the paper takes the sum.
            matching = self.matching * len(tail.update.tensors)
            terms += (LayerwiseCosine(weight=matching, weighting=0),)
        search = Search(
            terms=terms,
            optimiser=optimiser,
            schedule=Constant(),
            steps=self.steps,
            start=WarmStart(domain.denormalise(step.x.reshape(1, *domain.shape)).to(like)),
        )
        return GradientMatching(search, engine)
