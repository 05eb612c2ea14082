"""R-GAP: the input of every layer from its linear system, last layer first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from seepage.attacks.applicability import applies_to
from seepage.attacks.certificate import certify_solved, residual
from seepage.attacks.labels.infer_labels import recover_labels
from seepage.attacks.linear_systems.recursion import Step, Walk, as_solved, walk_back
from seepage.core import Attack, Observation, Reconstruction, Rng, Trace
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.core.rng import require_key
from seepage.core.task import Loss
from seepage.probing.layer_stack import INSTEAD, Layer, Stack, read_stack
from seepage.probing.usable_update import require_usable

_GRID = 4_000
_HALVINGS = 100


def head_deltas(layer: Layer, weight: Tensor, loss: Loss, labels: Tensor) -> list[Tensor]:
    """Every dL/dz of a last fully connected layer that its weight gradient allows.

    The weight gradient of one example is dz x^T, so it gives a unit vector a and a vector c with
    dz = s a and x = c / s, and leaves open only the number s. At the logits the loss ties both
    together:

        dL/dz (W c / s + b) = s a

    Of this vector equation the part along a is solved; in a logistic head it has two solutions
    where the example is classified well.

    Args:
        layer: The head.
        weight: dL/dw.
        loss: Of each example, `(B, K), (B,) -> (B,)`.
        labels: `(1,)`.

    References:
        Zhu and Blaschko, 2021, Sec. 3.1 (zhu2021recursive), for a logistic loss
    """
    direction = torch.linalg.svd(weight, full_matrices=False).U[:, 0]
    features = weight.T @ direction

    def mismatch(scales: Tensor) -> Tensor:
        logits = torch.outer(1 / scales, layer.weight @ features)
        if layer.bias is not None:
            logits = logits + layer.bias
        along: Tensor = _slopes(layer, loss, logits, labels) @ direction
        return along - scales

    size = torch.logspace(-12, 3, _GRID, dtype=weight.dtype, device=weight.device)
    roots = torch.cat([_roots(mismatch, size), _roots(mismatch, -size)])
    if len(roots) == 0:
        raise NotApplicable(
            f"no gradient at the logits explains the weight gradient of {layer.name!r}; was the "
            "update made from one example with this label, and not rescaled or made noisy?"
        )
    return [root * direction for root in roots]


def _slopes(layer: Layer, loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    leaves = logits.detach().requires_grad_()
    losses = loss(layer.activation(leaves), labels.expand(len(leaves), *labels.shape[1:]))
    (slopes,) = torch.autograd.grad(losses.sum(), leaves)
    return slopes


def _roots(function: Callable[[Tensor], Tensor], grid: Tensor) -> Tensor:
    """Where a function changes its sign between neighbours on a grid, by bisection."""
    values = function(grid)
    change = values[:-1].sign() * values[1:].sign() < 0
    left, right = grid[:-1][change], grid[1:][change]
    at_left = values[:-1][change].sign()
    for _ in range(_HALVINGS):
        middle = (left + right) / 2
        same = function(middle).sign() == at_left
        left, right = torch.where(same, middle, left), torch.where(same, right, middle)
    return (left + right) / 2


# As `Correct`, given which observation each walk is of.
CorrectOf = Callable[[Sequence[int], Sequence[Step]], Sequence[Tensor]]


def _read_single(observation: Observation) -> Stack:
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
    first, *_ = [_read_single(observation) for observation in observations]
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


@dataclass(frozen=True, kw_only=True)
class RGAP:
    """Backward recursion over linear systems, of one example.

    Each layer's input solves u x = v, with the layer's forward pass and its weight gradient as
    rows; of several solutions the one of least norm is taken. The certificate says `unique` where
    every layer left only one. Behind a ReLU only the rows of positive outputs are known.

    Args:
        damping: Tikhonov damping of the least squares, for noisy updates.

    Deviations:
        All rows of a fully connected layer are used, weighted by what they say, where the paper
        averages their quotients; the same without noise and better with it. The gradient at the
        logits is read off the last bias where there is one.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive)
    """

    damping: float = 0.0

    def __post_init__(self) -> None:
        """Check the damping."""
        if not self.damping >= 0:
            raise InvalidValue(f"expected damping >= 0, got {self.damping!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        return self.many((observation,), rngs=(rng,))[0]

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Compute several inputs of one network, the systems of a layer all at once.

        Args:
            observations: Of one example each, made with the same task and client.
            rngs: One key for each; nothing is random.
        """
        require_key(*rngs)
        began = time.perf_counter()
        stack = read_all(observations)
        steps = best_walks(observations, stack, damping=self.damping)
        seconds = (time.perf_counter() - began) / len(observations)
        return [
            reconstruction(
                observation, stack, step, Trace(seconds=seconds, device=str(step.x.device))
            )
            for observation, step in zip(observations, steps, strict=True)
        ]


def _require_convolutions(observation: Observation) -> None:
    stack = _read_single(observation)
    if all(not layer.convolutional for layer in stack.layers):
        raise NotApplicable("without convolutions it is what analytic_fc computes at once")
    recover_labels(observation)


@applies_to(require=_require_convolutions, needs_labels=True)
def rgap(*, damping: float = 0.0) -> Attack:
    """Recursive gradient attack: every layer's input by linear least squares, last layer first.

    For one example and a chain of convolutions and fully connected layers whose activations can be
    undone. Needs the label only where the last layer has no bias.

    Args:
        damping: Tikhonov damping of the least squares, for noisy updates.

    Example:
        >>> rgap()
        RGAP(damping=0.0)

    Deviations:
        Least squares by conjugate gradients, without the matrix. Any loss will do: the gradient at
        the logits is read off the last bias, or found from the loss itself, trying every solution.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive)
    """
    return RGAP(damping=damping)
