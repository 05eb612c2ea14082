"""The gradient at the logits, where the backward recursion begins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.attacks.linear_systems.layer import Layer
from seepage.core.errors import NotApplicable
from seepage.core.task import Loss

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
