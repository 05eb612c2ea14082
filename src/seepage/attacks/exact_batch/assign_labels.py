"""Assign labels to recovered examples by comparing the gradient that each label would cause."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core import Task
from seepage.probing.first_layer import watching


def read_labels(
    task: Task, layer: str, inputs: Tensor, gradients: Tensor, known: Tensor | None
) -> Tensor:
    """The label of each person: the one that explains the person's dL/dz best.

    Only the direction of dL/dz is compared, so that neither the size of the batch nor a step size
    nor clipping matters.

    Args:
        task: What was broadcast.
        layer: Name of the layer that returns z.
        inputs: `(B, ...)`, in natural units.
        gradients: dL/dz, `(B, m)`.
        known: The labels in some order, each then given to one person; None considers all classes.
    """
    options = torch.arange(task.classes, device=inputs.device) if known is None else known
    with watching(task.network) as passes:
        outputs = task.outputs(task.parameters, inputs.detach().requires_grad_())
    z = passes[layer].returned
    fits = []
    for option in options:
        labels = option.expand(len(inputs), *option.shape)
        loss = task.loss(outputs, labels).sum()
        (gradient,) = torch.autograd.grad(loss, z, retain_graph=True)
        fits.append(torch.cosine_similarity(gradient.double(), gradients, dim=1))
    fit = torch.stack(fits, dim=1)
    return options[fit.argmax(1) if known is None else match_one_to_one(fit)]


def match_one_to_one(fit: Tensor) -> Tensor:
    """For each row of a square matrix the column it is given, so that the sum is largest."""
    from scipy.optimize import linear_sum_assignment

    _, columns = linear_sum_assignment(torch.nan_to_num(fit).cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, device=fit.device)
