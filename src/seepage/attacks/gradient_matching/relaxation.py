"""From what is searched to what the network sees, where the two differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from seepage.core import Domain
from seepage.core.errors import NotApplicable
from seepage.domains import Tabular


class Relaxation(Protocol):
    """A smooth map onto candidates."""

    def __call__(self, raw: Tensor, domain: Domain) -> Tensor:
        """Return normalised inputs `(..., *shape)` for the raw ones, which may be any numbers."""


@dataclass(frozen=True)
class SoftmaxCategories:
    """Categories of a table as probabilities: the softmax of what is searched, column by column.

    So candidates can move from one category to another without leaving the rows of the table.

    References:
        Vero et al., 2023, Sec. 4.1 (vero2023tableak)
    """

    def __call__(self, raw: Tensor, domain: Domain) -> Tensor:
        """Replace the entries of every column of categories by their softmax."""
        if not isinstance(domain, Tabular):
            raise NotApplicable(
                f"a softmax of categories needs a table, but the inputs are {domain!r}; use an "
                "attack without it"
            )
        return domain.by_category(raw, _softmax)


def _softmax(entries: Tensor) -> Tensor:
    return entries.softmax(-1)
