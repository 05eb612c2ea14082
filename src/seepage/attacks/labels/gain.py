"""How the client turns the gradient of its head into what it shares."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from seepage.attacks.labels.evidence import Evidence, columns
from seepage.attacks.labels.head import classifier_head
from seepage.clients import Gradient
from seepage.core import Observation
from seepage.core.rng import Rng

# Beyond this error, local steps after the first blur the small rows that tell people apart.
EXACT = 0.02


@dataclass(frozen=True)
class Gain:
    """What separates a shared head from the mean gradient at the broadcast parameters.

    Args:
        factor: 1 for a mean gradient, B for a sum, about lr * steps for federated averaging.
        error: What the factor does not explain, relative to the gradient: later local steps start
            from other parameters.
    """

    factor: float
    error: float

    def undo(self, evidence: Evidence) -> Evidence:
        """The evidence in units of a mean gradient, and no more accurate than this gain."""
        scaled = evidence.divided_by(self.factor)
        return replace(scaled, precision=max(scaled.precision, self.error))


def measure_gain(observation: Observation, size: int) -> Gain:
    """Run the client's own code on noise with even labels, where the gradient is known.

    So every local computation and every deterministic defense that the adversary knows is covered
    without naming it: reductions, learning rates, local steps, momentum, clipping.

    Args:
        observation: With the simulation of the client.
        size: Number of noise inputs.
    """
    task = observation.task
    head = classifier_head(task)
    reference = task.parameters[head.weight]
    inputs = task.placed(task.domain.sample(size, rng=Rng(0).fork("gain")))
    labels = torch.arange(size, device=reference.device) % len(reference)
    shared = columns(observation.simulate(inputs, labels).descent().tensors, head)
    known = columns(Gradient()(task, inputs, labels).tensors, head)
    factor = float((shared * known).sum() / known.square().sum())
    if not factor > 0:
        # A simulation that gives nothing, such as everything pruned, says nothing of scale.
        return Gain(1.0, 1.0)
    return Gain(factor, float((shared / factor - known).norm() / known.norm()))
