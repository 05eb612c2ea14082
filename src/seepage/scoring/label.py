"""Whether the attack knows what class people belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Paired
from seepage.core.errors import InvalidValue


@dataclass(frozen=True)
class LabelAccuracy:
    """1.0 where the guessed label is the person's own, else 0.0; NaN if no labels were guessed.

    Labels travel with the inputs they came with, so an attack that knows every label but swaps
    two people's images scores 0 for both. Of mixed labels `(B, K)` the heaviest class counts. A
    person without a guess scores 0.

    Example:
        >>> inputs, labels = torch.zeros(2, 3), torch.tensor([4, 5])
        >>> guessed = torch.tensor([4, 9])
        >>> LabelAccuracy()(Paired(inputs, inputs, labels, guessed, (0, 1))).tolist()
        [1.0, 0.0]

    References: Zhao et al., 2020 (zhao2020idlg)
    """

    name: ClassVar[str] = "label_accuracy"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        if paired.guessed_labels is None:
            return torch.full((len(paired),), torch.nan, dtype=torch.float64)
        right = _classes(paired.guessed_labels) == _classes(paired.labels)
        has_guess = torch.tensor(paired.assignment) >= 0
        return (right & has_guess).double()


def count_error(guessed: Tensor, labels: Tensor) -> int:
    """People counted in a wrong class, of two multisets of B labels: sum_k |n'_k - n_k| / 2.

    B minus the size of the overlap, so that it is 0 for the right labels in any order and at most
    B. It belongs to a batch and not to a person, hence it is no metric.

    Args:
        guessed: Labels `(B,)` in any order.
        labels: The true ones, `(B,)`.

    Example:
        >>> count_error(torch.tensor([1, 1, 4]), torch.tensor([4, 1, 7]))
        1

    References: Ma et al., 2023 (ma2023instance)
    """
    if guessed.shape != labels.shape or labels.ndim != 1:
        raise InvalidValue(
            f"expected as many guessed labels as there are, {tuple(labels.shape)}, got "
            f"{tuple(guessed.shape)}; give classes, not probabilities"
        )
    classes = 1 + int(torch.cat([guessed, labels]).max())
    ours, theirs = (torch.bincount(each.cpu(), minlength=classes) for each in (guessed, labels))
    return int((ours - theirs).abs().sum()) // 2


def _classes(labels: Tensor) -> Tensor:
    return (labels.argmax(1) if labels.ndim == 2 else labels).cpu()
