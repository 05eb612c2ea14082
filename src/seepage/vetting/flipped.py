"""A network that knows the client's classes by other names."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seepage.core import Batch, Task
from seepage.vetting.verdict import Finding

FEWEST = 12
WRONG, RIGHT = 0.3, 0.8


def flipped_labels(task: Task, batch: Batch) -> Iterator[Finding]:
    """Predictions that are wrong as they are, and right after renaming the classes.

    An untrained network is wrong under every naming, a trained one right under its own.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    if batch.labels.ndim != 1 or len(batch) < FEWEST:
        return
    with torch.no_grad():
        predicted = task.in_mode("eval").outputs(task.parameters, batch.inputs).argmax(1)
    agreement = _agreement(predicted, batch.labels, task.classes)
    right, renamed = float((predicted == batch.labels).double().mean()), _best(agreement)
    if right <= WRONG and renamed >= RIGHT and len(set(predicted.tolist())) >= 3:
        reason = (
            f"it is right about {right:.0%} of your examples, and would be about {renamed:.0%} if "
            "its classes were renamed: rows of the classifier have been permuted"
        )
        yield Finding("flipped labels", "suspicious", "", reason)


def _agreement(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How often each class was predicted for each label, `(K, K)`, as shares of all."""
    pairs = torch.bincount(labels * classes + predicted, minlength=classes**2)
    return pairs.reshape(classes, classes).double() / len(labels)


def _best(agreement: Tensor) -> float:
    """The share that is right under the best renaming."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(agreement.cpu().numpy(), maximize=True)
    return float(agreement[rows, columns].sum())
