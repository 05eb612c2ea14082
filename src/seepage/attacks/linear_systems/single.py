"""What attacks that walk back through a stack share: one example in, one reconstruction out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from seepage.attacks.certify import certify_solved, residual
from seepage.attacks.linear_systems.head import head_deltas
from seepage.attacks.linear_systems.recursion import Step, Walk, as_solved, walk_back
from seepage.attacks.linear_systems.stack import INSTEAD, Stack, read_stack
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Reconstruction, Trace
from seepage.core.errors import MissingKnowledge, NotApplicable

# As `Correct`, given which observation each walk is of.
CorrectOf = Callable[[Sequence[int], Sequence[Step]], Sequence[Tensor]]


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


def read_all(observations: Sequence[Observation]) -> Stack:
    """The stack of observations of one network, all of them of one example."""
    first, *_ = [read_single(observation) for observation in observations]
    return first


def best_walks(
    observations: Sequence[Observation],
    stack: Stack,
    *,
    damping: float,
    correct: CorrectOf | None = None,
) -> list[Step]:
    """Walk back from every possible gradient at the logits; keep what explains the update best.

    Args:
        observations: Of one network.
        stack: That network.
        damping: Of the least squares.
        correct: Improves the inputs of a layer, given which observation each is of.
    """
    deltas = [_head_deltas(observation, stack) for observation in observations]
    owners = [case for case, found in enumerate(deltas) for _ in found]
    starts = [delta for found in deltas for delta in found]
    ends = walk_back(
        stack,
        [
            Walk(observations[case].update, delta)
            for case, delta in zip(owners, starts, strict=True)
        ],
        damping=damping,
        correct=as_solved if correct is None else partial(correct, owners),
    )
    return [
        _best(observation, [end for end, of in zip(ends, owners, strict=True) if of == case])
        for case, observation in enumerate(observations)
    ]


def _best(observation: Observation, walks: Sequence[Step]) -> Step:
    labels = observation.labels
    if len(walks) == 1 or labels is None:
        return walks[0]
    return min(walks, key=lambda walk: residual(observation, inputs(observation, walk.x), labels))


def reconstruction(
    observation: Observation, stack: Stack, step: Step, trace: Trace
) -> Reconstruction:
    """The guess, and what the walk proves about it."""
    found, labels = inputs(observation, step.x), observation.labels
    if labels is None:
        return Reconstruction(found, trace=trace)
    certificate = certify_solved(
        observation,
        found,
        labels,
        read=[layer.parameters[0] for layer in stack.layers],
        alone=step.exact and step.determined,
    )
    return Reconstruction(found, labels, trace, certificate)


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
