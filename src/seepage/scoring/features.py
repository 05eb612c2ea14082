"""How many columns of a person's row came back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Paired
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Tabular


@dataclass(frozen=True, kw_only=True)
class FeatureAccuracy:
    """Share of a row's columns that are right: the category, or the number up to a tolerance.

        (1/F) (sum_categories [guess = truth] + sum_numbers [|guess - truth| <= tolerance sigma])

    A person without a guess scores 0.

    Args:
        tolerance: Of numbers, in standard deviations of the population.

    Raises:
        NotApplicable: For anything but rows of a table whose columns are known.

    Example:
        >>> from seepage.domains import Categorical, Continuous
        >>> age = Continuous(name="age", low=0, high=100, mean=40, std=20)
        >>> vote = Categorical(name="vote", categories=("no", "yes"))
        >>> truth, guess = torch.tensor([[0.3, 1.0, 0.0]]), torch.tensor([[0.35, 0.0, 1.0]])
        >>> labels, table = torch.tensor([0]), Tabular((age, vote))
        >>> FeatureAccuracy()(Paired(truth, guess, labels, None, (0,), domain=table)).tolist()
        [0.5]

    References: Vero et al., 2023, Sec. 5 (vero2023tableak)
    """

    name: ClassVar[str] = "feature_accuracy"
    higher_leaks_more: ClassVar[bool] = True

    tolerance: float = 0.319

    def __post_init__(self) -> None:
        """Refuse a tolerance that nothing would meet."""
        if not self.tolerance > 0:
            raise InvalidValue(f"expected a tolerance above 0, got {self.tolerance!r}")

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        return self.by_column(paired).mean(1)

    def by_column(self, paired: Paired) -> Tensor:
        """Whether each column is right, 1.0 or 0.0: `(B, F)`."""
        domain = table_of(paired)
        truth, guess = paired.truth.cpu().double(), paired.guess.cpu().double()
        right = [
            truth[:, place].argmax(1) == guess[:, place].argmax(1)
            if deviation is None
            else (truth - guess)[:, place.start].abs() <= self.tolerance * deviation
            for place, deviation in zip(domain.places, domain.deviations, strict=True)
        ]
        has_guess = torch.tensor(paired.assignment)[:, None] >= 0
        return (torch.stack(right, dim=1) & has_guess).double()


def table_of(paired: Paired) -> Tabular:
    """The table the rows belong to, or `NotApplicable`."""
    if not isinstance(paired.domain, Tabular):
        raise NotApplicable(
            "feature_accuracy needs rows of a table and their columns; give score(..., domain=...)"
        )
    return paired.domain
