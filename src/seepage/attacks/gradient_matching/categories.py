"""Categories of a table, searched as numbers of which the softmax is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from seepage.attacks.gradient_matching.generator import Generated
from seepage.core import Domain, Rng
from seepage.core.errors import NotApplicable
from seepage.domains import Tabular


@dataclass(frozen=True)
class SoftmaxCategories:
    """Categories as probabilities: the softmax of what is searched, column by column.

    So candidates can move from one category to another without leaving the rows of the table.

    References:
        Vero et al., 2023, Sec. 4.1 (vero2023tableak)
    """

    def bind(self, batch_size: int, domain: Domain, *, like: Tensor) -> Generated:
        """Get ready for one batch size, with the dtype and device of `like`."""
        if not isinstance(domain, Tabular):
            raise NotApplicable(
                f"a softmax of categories needs a table, but the inputs are {domain!r}; use an "
                "attack without it"
            )
        return _Rows(batch_size, domain, like)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one table from numbers without bounds."""

    batch_size: int
    domain: Tabular
    like: Tensor

    @property
    def size(self) -> int:
        """As many as the rows have entries."""
        return self.batch_size * math.prod(self.domain.shape)

    def start(self, *, rng: Rng) -> Tensor:
        """Standard normal numbers."""
        return rng.normal((self.size,), like=self.like)

    def __call__(self, points: Tensor) -> Tensor:
        """Cut into rows, and take the softmax of their categories."""
        rows = points.reshape(*points.shape[:-1], self.batch_size, *self.domain.shape)
        return softmax_categories(rows, self.domain)


def softmax_categories(rows: Tensor, domain: Tabular) -> Tensor:
    """The rows `(..., *shape)` with the entries of every column of categories softmaxed."""
    return domain.by_category(rows, lambda entries: entries.softmax(-1))
