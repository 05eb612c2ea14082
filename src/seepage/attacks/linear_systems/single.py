"""What attacks that walk back through a stack share: one example in, one reconstruction out."""

from __future__ import annotations

from torch import Tensor

from seepage.attacks.certify import residual
from seepage.attacks.linear_systems.head import head_deltas
from seepage.attacks.linear_systems.recursion import Correct, Step, as_solved, walk_back
from seepage.attacks.linear_systems.stack import INSTEAD, Stack, read_stack
from seepage.attacks.usable import require_usable
from seepage.core import Certificate, Observation, Reconstruction, Trace
from seepage.core.errors import MissingKnowledge, NotApplicable

# A relative difference of updates below which the guess explains what was observed.
_EXPLAINED = 1e-3


def read_single(observation: Observation) -> Stack:
    """The network as a stack, if the update is one example's and can be walked back through."""
    require_usable(observation.update, observation.task)
    if (observation.batch_size or 1) > 1:
        raise NotApplicable(
            f"expected the update of one example, got one of {observation.batch_size}, whose "
            f"layers mix their equations; {INSTEAD}"
        )
    stack = read_stack(observation.task)
    if stack.layers[-1].convolutional:
        raise NotApplicable(
            f"expected the last layer of {observation.task.name} to be fully connected, got a "
            f"convolution; {INSTEAD}"
        )
    return stack


def best_walk(
    observation: Observation, stack: Stack, *, damping: float, correct: Correct = as_solved
) -> Step:
    """Walk back from every possible gradient at the logits; keep what explains the update best."""
    walks = [
        walk_back(stack, observation.update, delta, damping=damping, correct=correct)
        for delta in _head_deltas(observation, stack)
    ]
    labels = observation.labels
    if len(walks) == 1 or labels is None:
        return walks[0]
    return min(walks, key=lambda walk: residual(observation, inputs(observation, walk.x), labels))


def reconstruction(observation: Observation, step: Step, trace: Trace) -> Reconstruction:
    """The guess, and what the walk proves about it."""
    found, labels = inputs(observation, step.x), observation.labels
    if labels is None:
        return Reconstruction(found, trace=trace)
    difference = residual(observation, found, labels)
    unique = difference < _EXPLAINED and step.exact and step.determined
    return Reconstruction(found, labels, trace, Certificate(difference, True if unique else None))


def inputs(observation: Observation, x: Tensor) -> Tensor:
    """What the first layer reads, in natural units and the precision of the update, `(1, ...)`."""
    domain = observation.task.domain
    natural = domain.denormalise(x.reshape(1, *domain.shape))
    return domain.project(natural.to(next(iter(observation.update))))


def _head_deltas(observation: Observation, stack: Stack) -> list[Tensor]:
    head = stack.layers[-1]
    gradients = observation.update.descent().tensors
    weight, bias = head.parameters
    if bias in gradients:
        return [gradients[bias].to(head.weight)]
    if observation.labels is None:
        raise MissingKnowledge(
            "labels",
            needed_by=f"walking back from {head.name!r}, which has no bias,",
            hint="use Threat(knows_labels=True)",
        )
    loss, labels = observation.task.loss, observation.labels
    return head_deltas(head, gradients[weight].to(head.weight), loss, labels)
