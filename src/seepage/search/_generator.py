"""Generators: make inputs from other numbers, which are searched for instead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from seepage.core import Domain, Rng
from seepage.core.errors import NotApplicable
from seepage.domains._tabular import Tabular


class Generated(Protocol):
    """Makes one batch from a flat vector of numbers."""

    @property
    def size(self) -> int:
        """How many numbers a row has."""

    def start(self, *, rng: Rng) -> Tensor:
        """Return the start of a restart, `(size,)`."""

    def __call__(self, points: Tensor) -> Tensor:
        """Make the inputs `(..., B, *shape)` of rows `(..., size)`, valid and normalised.

        Must be differentiable and a pure function of tensors that stay where they are, so that a
        step can be captured as a CUDA graph; otherwise the step runs eagerly.
        """


class Generator(Protocol):
    """Makes batches of any size in a domain."""

    def bind(self, batch_size: int, domain: Domain, *, like: Tensor) -> Generated:
        """Prepare for one batch size, with the dtype and device of `like`."""


@dataclass(frozen=True)
class SoftmaxCategories:
    """Categories as probabilities: the softmax of the searched numbers, column by column.

    So a candidate can move from one category to another and stays a valid row of the table.

    References:
        Vero et al., 2023, Sec. 4.1 (vero2023tableak)
    """

    def bind(self, batch_size: int, domain: Domain, *, like: Tensor) -> Generated:
        """Prepare for one batch size, with the dtype and device of `like`."""
        if not isinstance(domain, Tabular):
            raise NotApplicable(
                f"a softmax of categories needs a table, but the inputs are {domain!r}; use an "
                "attack without it"
            )
        return _Rows(batch_size, domain, like)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Makes rows of one table from unbounded numbers."""

    batch_size: int
    domain: Tabular
    like: Tensor

    @property
    def size(self) -> int:
        return self.batch_size * math.prod(self.domain.shape)

    def start(self, *, rng: Rng) -> Tensor:
        return rng.normal((self.size,), like=self.like)

    def __call__(self, points: Tensor) -> Tensor:
        rows = points.reshape(*points.shape[:-1], self.batch_size, *self.domain.shape)
        return _softmax_categories(rows, self.domain)


def _softmax_categories(rows: Tensor, domain: Tabular) -> Tensor:
    """Take the softmax of the entries of every categorical column of rows `(..., *shape)`."""
    return domain.by_category(rows, lambda entries: entries.softmax(-1))
