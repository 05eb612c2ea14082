"""Generators: make inputs from other numbers, which are searched in their place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from seepage.core import Domain, Rng
from seepage.core.errors import NotApplicable
from seepage.domains.tabular import Tabular


class Generated(Protocol):
    """A way to make one batch from a flat vector of numbers, which are searched in its place."""

    @property
    def size(self) -> int:
        """How many numbers a row has."""

    def start(self, *, rng: Rng) -> Tensor:
        """Where a restart begins, `(size,)`."""

    def __call__(self, points: Tensor) -> Tensor:
        """The inputs `(..., B, *shape)` of rows `(..., size)`, valid and normalised.

        Differentiable, and a pure function of tensors that stay where they are, so that a step can
        be captured as a CUDA graph; what cannot be captured runs eagerly.
        """


class Generator(Protocol):
    """A value that makes batches of any size in a domain."""

    def bind(self, batch_size: int, domain: Domain, *, like: Tensor) -> Generated:
        """Get ready for one batch size, with the dtype and device of `like`."""


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
