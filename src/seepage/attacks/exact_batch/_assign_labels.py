"""Assign labels to recovered examples by comparing the gradient that each label would cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from seepage.probing._first_layer import watch_linear_layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from seepage.core import Task

# How many labels are tried for a copy of an input.
_TRIED = 8


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
    fit = _compare_labels(_differentiate(task, layer, inputs), gradients, options)
    return options[fit.argmax(1) if known is None else match_one_to_one(fit)]


def find_copies(
    task: Task,
    layer: str,
    inputs: Tensor,
    gradients: Tensor,
    labels: Tensor,
    *,
    size: int | None,
    known: Tensor | None,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Find out which inputs are in the batch more than once.

    Equal inputs show as one example, whose gradient is the sum of theirs. With one scale c for the
    batch,

        dL/dz_p = c sum_j g(x_p, y_pj)

    From one label per input on, the copy is added that brings both sides closest, until they agree
    or the batch size is reached. A mean does not show whether all examples are there twice, so of
    an unknown batch size the smallest one is taken.

    Args:
        task: What was broadcast.
        layer: Name of the layer that returns z.
        inputs: Different ones `(r, ...)`, in natural units.
        gradients: dL/dz, `(r, m)`.
        labels: One for each, `(r,)`.
        size: The batch size; None if it is not known.
        known: The labels of the whole batch, if they are known.
        tolerance: Share of the squared gradients that may be left over.

    Returns:
        For each example the number of its input, `(n,)`, and its label, `(n,)`. If copies explain
        nothing, there are none: examples may be missing because they have no gradient.
    """
    rows = torch.arange(len(inputs), device=inputs.device)
    most = 2 * len(inputs) if size is None else size
    if labels.ndim != 1 or most <= len(inputs):
        return rows, labels
    gradient = _differentiate(task, layer, inputs)
    seen, explained = gradients.double(), gradient(labels)
    first = misfit = _measure_misfit(seen, explained)
    if size is None and misfit <= tolerance:
        return rows, labels
    options = torch.arange(task.classes, device=inputs.device) if known is None else known
    fit = _compare_labels(gradient, gradients, options)
    tried = options[fit.topk(min(_TRIED, len(options)), dim=1).indices]
    caused = torch.stack([gradient(column) for column in tried.T], dim=1)
    everybody, all_labels = rows, labels
    while len(everybody) < most and (size is not None or misfit > tolerance):
        product = (seen * explained).sum() + (seen[:, None] * caused).sum(2)
        added = 2 * explained[:, None] + caused
        square = explained.square().sum() + (added * caused).sum(2)
        cosines = (product / square.sqrt()).nan_to_num(nan=-torch.inf)
        row, column = divmod(int(cosines.argmax()), tried.shape[1])
        explained = explained.index_add(0, rows[row : row + 1], caused[row, column][None])
        everybody = torch.cat([everybody, rows[row : row + 1]])
        all_labels = torch.cat([all_labels, tried[row, column][None]])
        misfit = _measure_misfit(seen, explained)
    if misfit > tolerance and (size is None or misfit >= first):
        return rows, labels
    if known is not None and len(known) == len(everybody):
        all_labels = known[match_one_to_one(fit[everybody])]
    return everybody, all_labels


def _differentiate(task: Task, layer: str, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function from one label per input, `(B,)`, to dL/dz, `(B, m)`, in float64."""
    with watch_linear_layers(task.network) as passes:
        outputs = task.outputs(task.parameters, inputs.detach().requires_grad_())
    z = passes[layer].returned

    def gradient(labels: Tensor) -> Tensor:
        loss = task.loss(outputs, labels).sum()
        (found,) = torch.autograd.grad(loss, z, retain_graph=True)
        return found.double()

    return gradient


def _compare_labels(
    gradient: Callable[[Tensor], Tensor], gradients: Tensor, options: Tensor
) -> Tensor:
    """The cosine between dL/dz and what each label would cause, `(B, K)`."""
    size = len(gradients)
    # Small tensors that are kept one by one would pin the large ones freed between them.
    fit = gradients.new_empty(size, len(options), dtype=torch.float64)
    for number, option in enumerate(options):
        caused = gradient(option.expand(size, *option.shape))
        fit[:, number] = torch.cosine_similarity(caused, gradients, dim=1)
    return fit


def _measure_misfit(seen: Tensor, explained: Tensor) -> float:
    """The share of the squared gradients that no multiple of the explained ones explains."""
    product = (seen * explained).sum().square()
    return 1 - float(product / (seen.square().sum() * explained.square().sum()))


def match_one_to_one(fit: Tensor) -> Tensor:
    """Assign a different column to each row, of which there are no more, for the largest sum."""
    from scipy.optimize import linear_sum_assignment

    _, columns = linear_sum_assignment(torch.nan_to_num(fit).cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, device=fit.device)
