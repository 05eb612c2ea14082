"""Gradient matching: find inputs whose update looks like the observed one."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.attacks.gradient_matching.descent import Descent, descend
from seepage.attacks.gradient_matching.optimisers import Optimiser
from seepage.attacks.gradient_matching.schedules import Schedule
from seepage.attacks.gradient_matching.term import Term
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable


@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    """Minimise a sum of terms over candidates, from several random starts.

    The start whose objective ends lowest is returned; the truth plays no part in the choice.

    Args:
        terms: Fidelity and priors.
        optimiser: The rule to move by.
        schedule: The step size over time.
        steps: Steps of each restart.
        restarts: Independent starts, each N(0, 1) in normalised coordinates.
        boxed: Whether to project on valid inputs after each step.
    """

    terms: tuple[Term, ...]
    optimiser: Optimiser
    schedule: Schedule
    steps: int
    restarts: int = 1
    boxed: bool = True

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.steps < 1 or self.restarts < 1:
            raise InvalidValue(
                f"expected steps >= 1 and restarts >= 1, got {self.steps!r} and {self.restarts!r}"
            )

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Run every restart and keep the one with the lowest objective."""
        require_usable(observation.update, observation.task)
        labels = observation.labels
        if labels is None:
            raise MissingKnowledge(
                "labels", needed_by="gradient matching", hint="use Threat(knows_labels=True)"
            )
        began = time.perf_counter()
        runs = [
            self._run(observation, labels, rng.fork("restart", index))
            for index in range(self.restarts)
        ]
        best = min(runs, key=lambda run: run.value)
        if best.value == float("inf"):
            raise NotApplicable(
                f"every one of {self.restarts} restarts diverged; try a smaller step size"
            )
        domain = observation.task.domain
        return Reconstruction(
            inputs=domain.project(domain.denormalise(best.point)),
            labels=labels,
            trace=Trace(
                objective=best.values,
                finals=tuple(run.value for run in runs),
                seconds=time.perf_counter() - began,
                device=str(best.point.device),
            ),
        )

    def _run(self, observation: Observation, labels: Tensor, rng: Rng) -> Descent:
        domain = observation.task.domain
        reference = next(iter(observation.update))

        def objective(point: Tensor) -> Tensor:
            candidate = Candidate(point, labels, domain)
            return torch.stack([t.weight * t(candidate, observation) for t in self.terms]).sum()

        def project(point: Tensor) -> Tensor:
            if not self.boxed:
                return point
            return domain.normalise(domain.project(domain.denormalise(point)))

        return descend(
            objective,
            rng.normal((len(labels), *domain.shape), like=reference),
            optimiser=self.optimiser,
            schedule=self.schedule,
            steps=self.steps,
            project=project,
        )
