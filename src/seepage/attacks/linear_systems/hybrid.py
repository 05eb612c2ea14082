"""The hybrid of linear systems and gradient matching."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from seepage.attacks.gradient_matching import Engine
from seepage.attacks.linear_systems.correction import Correction
from seepage.attacks.linear_systems.recursion import Step
from seepage.attacks.linear_systems.single import best_walk, read_single, reconstruction
from seepage.attacks.linear_systems.stack import Stack
from seepage.attacks.linear_systems.tail import observe_tail
from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.errors import InvalidValue, MissingKnowledge, UnknownName

Constraint = Literal["auto", "hard", "soft"]
_CONSTRAINTS = ("auto", "hard", "soft")


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """R-GAP with every convolutional layer's solution corrected by gradient matching.

        minimise  mu1 sum_l (1 - cos(g_l(x), g*_l)) + mu2 TV(x)   subject to  u x = v

    starting from the solution of least norm, over the gradients from this layer on. What the
    linear system leaves open is so decided by how inputs look, not by being small.

    Args:
        corrections: One for each convolutional layer, the first first; the last one serves all
            deeper layers.
        constraint: "hard" returns to the solutions of u x = v after every step; "soft" adds
            mu3 ||u x - v||^2 to the objective; "auto" is hard where u and v hold no error, because
            every layer above had but one solution, and soft elsewhere.
        step_size: Of Adam.
        damping: Of the least squares.
        engine: How the searches are computed.

    References:
        Chen and Campbell, 2022, Algorithm 1 and Eq. 11 (chen2022analysing)
    """

    corrections: tuple[Correction, ...]
    constraint: Constraint
    step_size: float
    damping: float
    engine: Engine

    def __post_init__(self) -> None:
        """Check the options."""
        if self.constraint not in _CONSTRAINTS:
            raise UnknownName("constraint", self.constraint, _CONSTRAINTS)
        if not self.corrections:
            raise InvalidValue("expected a correction for at least one layer, got none")
        if not self.damping >= 0:
            raise InvalidValue(f"expected damping >= 0, got {self.damping!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Walk back through the network, correcting on the way."""
        began = time.perf_counter()
        stack = read_single(observation)
        if observation.labels is None:
            raise MissingKnowledge(
                "labels", needed_by="gradient matching", hint="use Threat(knows_labels=True)"
            )
        traces: list[Trace] = []

        def correct(step: Step) -> Tensor:
            # Where nothing is left open and nothing is wrong, a search could only do harm.
            if step.exact and step.determined:
                return step.x
            x, trace = self._corrected(observation, stack, step, rng)
            traces.append(trace)
            return x

        step = best_walk(observation, stack, damping=self.damping, correct=correct)
        last = traces[-1] if traces else Trace(device=str(step.x.device))
        trace = replace(last, seconds=time.perf_counter() - began)
        return reconstruction(observation, step, trace)

    def _corrected(
        self, observation: Observation, stack: Stack, step: Step, rng: Rng
    ) -> tuple[Tensor, Trace]:
        correction = self.corrections[min(step.index, len(self.corrections) - 1)]
        hard = self.constraint == "hard" or (self.constraint == "auto" and step.exact)
        tail = observe_tail(observation, stack, step.index)
        attack = correction.attack(
            tail, step, hard=hard, step_size=self.step_size, engine=self.engine
        )
        found = attack(tail, rng=rng.fork("layer", step.index))
        return tail.task.domain.normalise(found.inputs).to(step.x).flatten(), found.trace
