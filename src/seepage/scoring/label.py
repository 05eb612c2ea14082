"""Whether the attack knows what class a person belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Paired


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


def _classes(labels: Tensor) -> Tensor:
    return (labels.argmax(1) if labels.ndim == 2 else labels).cpu()
