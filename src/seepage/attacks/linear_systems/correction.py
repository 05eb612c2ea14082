"""The search that corrects the solution of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.attacks.gradient_matching import (
    Adam,
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
from seepage.attacks.linear_systems.constraint import OnSolutions, SystemResidual
from seepage.attacks.linear_systems.least_norm import LeastNorm
from seepage.attacks.linear_systems.recursion import Step
from seepage.core import Observation


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
        terms: tuple[Term, ...] = (TotalVariation(weight=self.tv), LeastNorm(weight=self.norm))
        optimiser: Optimiser = Adam(step_size=step_size, sign="none")
        if hard:
            optimiser = OnSolutions(optimiser=optimiser, system=system, target=target)
        else:
            terms += (SystemResidual(weight=self.system, system=system, target=target),)
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
