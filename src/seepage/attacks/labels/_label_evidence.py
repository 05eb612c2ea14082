"""The classifier head and its gradient, read off an update in double precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from seepage.clients._gradient import Gradient
from seepage.core import Observation, Task
from seepage.core._rng import Rng
from seepage.core._usable_update import require_usable
from seepage.core.errors import NotApplicable, summarise_error
from seepage.probing._heads import Head, classifier_head


@dataclass(frozen=True, eq=False)
class Evidence:
    """The head and its gradient.

    A bias is treated as the weight of one more feature that is always 1. For logits W h_i and the
    mean cross-entropy of B examples,

        dL/dW = 1/B sum_i (softmax(W h_i) - e_{y_i}) h_i^T

    Args:
        weight: W, `(K, d)`.
        offset: Added to the logits and not in the update, `(K,)`.
        gradient: dL/dW, `(K, d)`.
        anchor: A vector `(d,)` whose product with the features of any example is 1: exactly with a
            bias, and roughly without one, judging by the features of noise.
        biased: Whether the last column is the bias.
        oriented: Whether the product of the anchor and features is positive for certain: there is a
            bias, or no feature of noise is negative.
        precision: Relative accuracy of the gradient.
        rounding: Absolute accuracy of its entries.
    """

    weight: Tensor
    offset: Tensor
    gradient: Tensor
    anchor: Tensor
    biased: bool
    oriented: bool
    precision: float
    rounding: float

    @property
    def classes(self) -> int:
        """Number K of classes."""
        return len(self.weight)

    @cached_property
    def signal(self) -> Tensor:
        """The gradient of the bias `(K,)`, estimated where there is no bias."""
        return self.gradient @ self.anchor

    @cached_property
    def centre(self) -> Tensor:
        """The feature vector h for which signal h^T is closest to the gradient, `(d,)`."""
        return self.gradient.T @ self.signal / self.signal.square().sum()

    def predictions(self, features: Tensor) -> Tensor:
        """Softmax(W h), `(A, K)`, of features `(A, d)`."""
        return torch.softmax(features @ self.weight.T + self.offset, dim=-1)

    def divide_by(self, factor: float) -> Evidence:
        """The evidence in a unit that is `factor` times as large."""
        return replace(self, gradient=self.gradient / factor, rounding=self.rounding / abs(factor))


# Slopes at the logits shorter than this are too near to rounding to be compared.
_SLOPE = 1e-3


def read_evidence(observation: Observation) -> Evidence:
    """Read the head off an update, with the sign of a gradient but in the update's own scale.

    Raises:
        NotApplicable: No head, a head that the update does not hold, or no cross-entropy.
    """
    task, update = observation.task, observation.update
    require_usable(update, task)
    require_classes(task)
    head = classifier_head(task)
    _require_cross_entropy(task, head, alone=observation.batch_size == 1)
    shared = update.descent().tensors
    gradient = shared[head.weight]
    if not bool(gradient.any()):
        raise NotApplicable(
            f"expected the update to move the classifier head {head.weight!r}, got zeros, which "
            "say nothing of labels; use Threat(knows_labels=True)"
        )
    if head.bias is not None and bool((gradient.any(1) & (shared[head.bias] == 0)).any()):
        # The bias was pruned or dropped, and what is left of it misleads.
        head = head.without_bias(task)
    mean = head.features.double().cpu().mean(0)
    if head.bias is None:
        anchor = mean / mean.square().sum()
    else:
        anchor = torch.cat([torch.zeros_like(mean), mean.new_ones(1)])
    limits = torch.finfo(gradient.dtype)
    weight = _join_columns(task.parameters, head)
    return Evidence(
        weight=weight,
        offset=head.offset.double().cpu(),
        gradient=_join_columns(shared, head),
        anchor=anchor,
        biased=head.bias is not None,
        oriented=head.bias is not None or bool((head.features >= 0).all()),
        precision=max(limits.eps, 1e-12),
        # A difference of weights has the rounding errors of the weights.
        rounding=limits.eps * (float(weight.abs().max()) if update.kind == "difference" else 0.0),
    )


def _join_columns(tensors: Mapping[str, Tensor], head: Head) -> Tensor:
    """Weight and bias of the head side by side, `(K, d)` or `(K, d + 1)`, in double precision."""
    parts = [tensors[head.weight]]
    if head.bias is not None:
        parts.append(tensors[head.bias][:, None])
    return torch.cat(parts, dim=1).detach().double().cpu()


def require_classes(task: Task) -> None:
    """Raise `NotApplicable` unless each example has a class as its target."""
    if not reads_classes(task):
        raise NotApplicable(
            f"expected targets of {task.name} that are classes, one for each example, got others, "
            "which its gradient does not hold in this way; use Threat(knows_labels=True)"
        )


def reads_classes(task: Task) -> bool:
    """Whether the loss reads one class number for each row of logits."""
    if task.target_shape is not None or len(task.output_shape) != 1:
        return False
    # As many rows as no other size, so that labels cannot be spread over the logits by mistake.
    rows = 3 if task.classes > 3 else task.classes + 1
    logits = task.reference.new_zeros(rows, task.classes)
    labels = torch.arange(len(logits), device=logits.device) % task.classes
    try:
        return task.loss(logits, labels).shape == labels.shape
    except Exception:  # noqa: BLE001 - the loss of a user may raise anything
        return False


def _require_cross_entropy(task: Task, head: Head, *, alone: bool) -> None:
    """Reject a loss whose derivative is not roughly a multiple of the cross-entropy's."""
    labels = torch.arange(len(head.logits), device=head.logits.device) % head.logits.shape[1]
    logits = head.logits.clone().requires_grad_()
    try:
        (slope,) = torch.autograd.grad(task.loss(logits, labels).sum(), logits)
    except Exception as error:
        raise NotApplicable(
            f"the loss of {task.name} does not read class numbers, so that the gradient does not "
            f"hold labels: {summarise_error(error)}; use Threat(knows_labels=True)"
        ) from error
    hot = torch.nn.functional.one_hot(labels, logits.shape[1])
    expected = torch.softmax(head.logits, dim=1) - hot
    if not alone:
        slope, expected = slope.reshape(1, -1), expected.reshape(1, -1)
    cosines = torch.nn.functional.cosine_similarity(slope, expected, dim=1)
    # Where the network is sure of the label, what is left of the slope is rounding.
    cosines = cosines[expected.norm(dim=1) > _SLOPE]
    if not (len(cosines) and float(cosines.min()) > 0.9):
        raise NotApplicable(
            f"expected {task.name} to be trained with a cross-entropy, whose gradient holds the "
            "labels, got another loss; use Threat(knows_labels=True)"
        )


# Beyond this error, local steps after the first blur the small rows that tell examples apart.
EXACT = 0.02


@dataclass(frozen=True)
class _Gain:
    """How a shared head differs from the mean gradient at the broadcast parameters.

    Args:
        factor: 1 for a mean gradient, B for a sum, about lr * steps for federated averaging.
        error: Relative to the gradient, beyond the factor: later local steps start from other
            parameters.
    """

    factor: float
    error: float

    def undo(self, evidence: Evidence) -> Evidence:
        """The evidence in units of a mean gradient, no more precise than this gain."""
        scaled = evidence.divide_by(self.factor)
        return replace(scaled, precision=max(scaled.precision, self.error))


def measure_gain(observation: Observation, size: int) -> _Gain:
    """Simulate the client on `size` noise inputs and compare with their mean gradient.

    This covers every local computation and every deterministic defense that the adversary knows:
    reductions, learning rates, local steps, momentum, clipping.
    """
    task = observation.task
    head = classifier_head(task)
    reference = task.parameters[head.weight]
    inputs = task.move_inputs(task.domain.sample(size, rng=Rng(0).fork("gain")))
    labels = torch.arange(size, device=reference.device) % len(reference)
    shared = _join_columns(observation.simulate(inputs, labels).descent().tensors, head)
    known = _join_columns(Gradient()(task, inputs, labels).tensors, head)
    factor = float((shared * known).sum() / known.square().sum())
    if not factor > 0:
        # A simulation that gives zeros, such as everything pruned, does not show the scale.
        return _Gain(1.0, 1.0)
    return _Gain(factor, float((shared / factor - known).norm() / known.norm()))
