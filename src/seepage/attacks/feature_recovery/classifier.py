"""What recoveries from the last layer of a classifier ask for: labels, the loss, whole entries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.attacks.labels.head import Head, classifier_head
from seepage.attacks.usable import require_continuous, require_usable
from seepage.core import Observation
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.core.rng import Rng


def layer_of(head: Head) -> str:
    """The name of the last layer, as `named_modules` spells it."""
    return head.weight.removesuffix("weight").removesuffix(".")


def classified(observation: Observation, *, needed_by: str) -> tuple[Head, Tensor]:
    """The last layer, and the known labels as probabilities `(B, K)`.

    Raises:
        MissingKnowledge: Labels are unknown.
        NotApplicable: There is no such layer, or the loss is not its cross-entropy.
    """
    require_usable(observation.update, observation.task)
    require_continuous(observation.task)
    labels = _probabilities(observation, needed_by)
    _require_softmax(observation, labels, needed_by)
    return classifier_head(observation.task), labels


def missing(gradient: Tensor) -> Tensor:
    """Which entries of the last layer's gradient a defense has taken away, `(K, d)`.

    Entries are products of features and of softmax shares, and shares hardly vanish, so that a
    column of zeros may be that of a dead feature. Any other zero was put there, and then columns
    of zeros may have been put there as well.
    """
    there = gradient != 0
    return ~there & bool((~there & there.any(0)).any())


def _probabilities(observation: Observation, needed_by: str) -> Tensor:
    labels = observation.labels
    if labels is None:
        raise MissingKnowledge(
            "labels",
            needed_by=needed_by,
            hint="use knows_labels=True, or InferLabels to recover them",
        )
    return one_hot(labels, observation.task.classes) if labels.ndim == 1 else labels


def _require_softmax(observation: Observation, labels: Tensor, needed_by: str) -> None:
    """Refuse another loss than cross-entropy, told by its gradient for the labels of the batch."""
    task, known = observation.task, observation.labels
    assert known is not None
    reference = next(iter(task.parameters.values()))
    shape = len(labels), task.classes
    logits = Rng(0).fork("logits").normal(shape, like=reference).requires_grad_()
    (found,) = torch.autograd.grad(task.loss(logits, known).sum(), logits)
    expected = logits.softmax(1) - labels
    if not torch.allclose(found, expected.to(found), atol=1e-2 if found.itemsize < 4 else 1e-4):
        raise NotApplicable(
            f"{needed_by} reads the gradient of cross-entropy, and the loss of {task.name} "
            "has another one; use systematic without features"
        )
