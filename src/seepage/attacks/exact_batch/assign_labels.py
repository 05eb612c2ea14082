"""Assign labels to recovered examples by comparing the gradient that each label would cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from seepage.probing.first_layer import watch_linear_layers

if TYPE_CHECKING:
    from torch import Tensor

    from seepage.core import Task


def read_labels(
    task: Task, layer: str, inputs: Tensor, gradients: Tensor, known: Tensor | None
) -> Tensor:
    """Give each example the label that explains its dL/dz best.

    Only the direction of dL/dz is compared. The batch size, the step size and clipping cancel.

    Args:
        task: What was broadcast.
        layer: Name of the layer that returns z.
        inputs: `(B, ...)`, in natural units.
        gradients: dL/dz, `(B, m)`.
        known: The labels in some order, each used once; None allows every class for each example.
    """
    options = torch.arange(task.classes, device=inputs.device) if known is None else known
    with watch_linear_layers(task.network) as passes:
        outputs = task.outputs(task.parameters, inputs.detach().requires_grad_())
    z = passes[layer].returned
    fits = []
    for option in options:
        loss = task.loss(outputs, option.expand(len(inputs), *option.shape)).sum()
        (gradient,) = torch.autograd.grad(loss, z, retain_graph=True)
        fits.append(torch.cosine_similarity(gradient.double(), gradients, dim=1))
    fit = torch.stack(fits, dim=1)
    return options[fit.argmax(1) if known is None else match_one_to_one(fit)]


def match_one_to_one(fit: Tensor) -> Tensor:
    """Assign a different column to each row of a square matrix so that the sum is largest."""
    from scipy.optimize import linear_sum_assignment

    _, columns = linear_sum_assignment(torch.nan_to_num(fit).cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, device=fit.device)
