"""How many tokens of a person's text came back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from seepage.core import Paired
from seepage.core.errors import NotApplicable
from seepage.scoring.entrywise import differences


@dataclass(frozen=True)
class TokenAccuracy:
    """Share of a text's tokens that are right, each in its own place.

        (1/L) sum_j [guess_j = truth_j]

    Whether all are right, hence the rate of exact sequences, is what `exact` says.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> import torch
        >>> truth, guess = torch.tensor([[4, 8, 1, 5]]), torch.tensor([[4, 8, 1, 6]])
        >>> TokenAccuracy()(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [0.75]

    References: Petrov et al., 2024 (petrov2024dager), on texts that come back whole
    """

    name: ClassVar[str] = "token_accuracy"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        check_tokens(paired)
        return 1 - differences(paired).mean(1)


def check_tokens(paired: Paired) -> None:
    """Raise `NotApplicable` unless the inputs are tokens."""
    if paired.truth.is_floating_point():
        raise NotApplicable("token_accuracy needs tokens, whole numbers of words in a vocabulary")
