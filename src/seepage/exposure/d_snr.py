"""D-SNR: how far one example outweighs all the others in the gradient of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.clients.gradient import Gradient
from seepage.core import Batch, Task

FEWEST_EXAMPLES = 8
_MOST = 16
# An example with a smaller error (relative to the largest) is memorised and not compared.
_KNOWN = 1e-5


@dataclass(frozen=True)
class Concentration:
    """How far one example outweighs all the others in some layer.

    Args:
        plain: max over layers of max_i ||g_i|| / (sum_j ||g_j|| - max_i ||g_i||), the D-SNR.
        relative: The same with every g_i divided by the norm of the loss's gradient at the logits.
        layer: The layer where `relative` is largest.
        examples: How many examples were compared.
    """

    plain: float
    relative: float
    layer: str
    examples: int


def concentration(task: Task, batch: Batch) -> Concentration | None:
    """D-SNR over the first examples of a batch; None if too few have an error."""
    task = task.in_mode("eval")
    norms, errors = [], []
    for number in range(min(len(batch), _MOST)):
        one = slice(number, number + 1)
        update = Gradient()(task, batch.inputs[one], batch.labels[one])
        norms.append(torch.stack([tensor.norm() for tensor in update]))
        errors.append(_error_norm(task, batch.inputs[one], batch.labels[one]))
    error = torch.stack(errors).double()
    wrong = error > _KNOWN * float(error.max())
    if int(wrong.sum()) < FEWEST_EXAMPLES:
        return None
    each = torch.stack(norms).double()[wrong]
    relative = _dominance(each / error[wrong, None])
    worst = int(relative.argmax())
    name = list(task.parameters)[worst]
    return Concentration(float(_dominance(each).max()), float(relative[worst]), name, len(each))


def _dominance(norms: Tensor) -> Tensor:
    """For each column, the largest entry over the sum of the others; zero where all are zero."""
    largest = norms.amax(0)
    rest = norms.sum(0) - largest
    return torch.where(largest > 0, largest / rest.clamp_min(1e-300), 0.0)


def _error_norm(task: Task, inputs: Tensor, labels: Tensor) -> Tensor:
    """The norm of the loss's gradient at the logits."""
    with torch.no_grad():
        outputs = task.outputs(task.parameters, inputs)
    outputs.requires_grad_(True)
    (gradient,) = torch.autograd.grad(task.loss(outputs, labels).sum(), outputs)
    norm: Tensor = gradient.norm()
    return norm
