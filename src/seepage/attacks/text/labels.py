"""The label of every text, read off the head."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.exact_batch.labels import one_each
from seepage.attacks.labels.head import classifier_head
from seepage.core import Observation


def read_labels(observation: Observation, features: Tensor, logits: Tensor) -> Tensor:
    """The label of each text: the one whose gradient at the logits agrees with the head's.

    The gradient of the head is dW = U^T F, with the known features F of the texts `(B, d)`, so
    that the gradients at the logits are U = (dW F^+)^T. Only their direction is compared, and
    neither the size of the batch nor a step size matters.

    Args:
        observation: With the labels in some order, each then given to one text, or without.
        features: What the head reads of each text, `(B, d)`.
        logits: What it gives, `(B, K)`.
    """
    task, known = observation.task, observation.labels
    gradient = observation.update.descent().tensors[classifier_head(task).weight].double()
    seen = (gradient @ torch.linalg.pinv(features.double())).T
    options = torch.arange(task.classes, device=logits.device) if known is None else known
    fit = torch.stack(
        [_fit(observation, logits, option, seen) for option in options.unbind()], dim=1
    )
    return options[fit.argmax(1) if known is None else one_each(fit)]


def _fit(observation: Observation, logits: Tensor, option: Tensor, seen: Tensor) -> Tensor:
    leaves = logits.detach().requires_grad_()
    losses = observation.task.loss(leaves, option.expand(len(leaves), *option.shape))
    (slopes,) = torch.autograd.grad(losses.sum(), leaves)
    return torch.cosine_similarity(slopes.double(), seen, dim=1)
