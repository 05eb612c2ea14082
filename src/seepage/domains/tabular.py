"""Rows of a table: numbers beside categories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """A column of numbers, stored as their place between two bounds.

    Args:
        name: What the column holds.
        low: The number stored as 0.
        high: The number stored as 1.
        mean: Of the population, in the column's own unit; the network sees it as 0.
        std: Its standard deviation, which the network sees as 1.
    """

    name: str
    low: float
    high: float
    mean: float
    std: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (self.low < self.high and self.std > 0):
            raise InvalidValue(f"expected low < high and std > 0, got {self!r}")

    @property
    def width(self) -> int:
        """Entries of a row that it takes."""
        return 1

    def words(self, entries: Tensor) -> str:
        """The number, in its own unit."""
        return f"{self.name} {self.low + (self.high - self.low) * float(entries):.3g}"


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """A column of categories, stored as one entry for each of which one is 1.

    Args:
        name: What the column holds.
        categories: What each entry stands for.
    """

    name: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the categories."""
        if len(self.categories) < 2:
            raise InvalidValue(f"expected two categories or more, got {self!r}")

    @property
    def width(self) -> int:
        """Entries of a row that it takes."""
        return len(self.categories)

    def words(self, entries: Tensor) -> str:
        """The category that weighs most."""
        return f"{self.name} {self.categories[int(entries.argmax())]}"


Column = Continuous | Categorical


@dataclass(frozen=True)
class Tabular:
    """Rows `(D,)` of columns one after the other, every entry in [0, 1].

    Args:
        columns: In the order of the entries.

    Example:
        >>> age = Continuous(name="age", low=18, high=98, mean=45, std=16)
        >>> vote = Categorical(name="vote", categories=("no", "yes"))
        >>> table = Tabular((age, vote))
        >>> table.words(torch.tensor([0.5, 0.2, 0.8]))
        ('age 58', 'vote yes')
        >>> table.project(torch.tensor([[1.5, 0.2, 0.8]])).tolist()
        [[1.0, 0.0, 1.0]]
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Check that there is something to hold."""
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise InvalidValue("expected at least one column, got none")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row, `(D,)`."""
        return (sum(column.width for column in self.columns),)

    @property
    def bounds(self) -> tuple[float, float]:
        """All entries lie in [0, 1]."""
        return 0.0, 1.0

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Where each column stands in a row."""
        ends = [0]
        for column in self.columns:
            ends.append(ends[-1] + column.width)
        return tuple(slice(a, b) for a, b in pairwise(ends))

    @property
    def deviations(self) -> tuple[float | None, ...]:
        """Standard deviation of each column of numbers, as stored; None for categories."""
        return tuple(
            c.std / (c.high - c.low) if isinstance(c, Continuous) else None for c in self.columns
        )

    def by_category(self, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows `(..., D)` with the entries of every column of categories changed."""
        parts = [
            change(rows[..., place]) if isinstance(column, Categorical) else rows[..., place]
            for column, place in zip(self.columns, self.places, strict=True)
        ]
        return torch.cat(parts, dim=-1)

    def normalise(self, inputs: Tensor) -> Tensor:
        """Standardise the numbers, and leave the categories as they are."""
        mean, std = _statistics(self, inputs.dtype, inputs.device)
        return (inputs - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Undo `normalise`."""
        mean, std = _statistics(self, inputs.dtype, inputs.device)
        return inputs * std + mean

    def project(self, inputs: Tensor) -> Tensor:
        """Clamp the numbers, and choose the category that weighs most."""
        return self.by_category(inputs, _heaviest).clamp(0, 1)

    def sample(self, size: int, *, rng: Rng) -> Tensor:
        """Draw numbers and categories uniformly, `(size, D)`."""
        return self.project(rng.uniform((size, *self.shape)))

    def check(self, inputs: Tensor) -> None:
        """Raise `InvalidValue` unless these are rows `(B, D)` with one category per column."""
        if tuple(inputs.shape[1:]) != self.shape or not inputs.is_floating_point():
            raise InvalidValue(
                f"expected rows (B, {self.shape[0]}) of floats, got {inputs.dtype} "
                f"{tuple(inputs.shape)}; were they made with these columns?"
            )
        for column, place in zip(self.columns, self.places, strict=True):
            entries = inputs[:, place]
            if not bool(((entries >= 0) & (entries <= 1)).all()):
                raise InvalidValue(
                    f"expected column {column.name!r} between its bounds, stored as 0 to 1, got "
                    f"{float(entries.min()):.3g} to {float(entries.max()):.3g}"
                )
        if not torch.equal(self.project(inputs), inputs):
            raise InvalidValue("expected one category per column, stored as one 1 among 0s")

    def words(self, row: Tensor) -> tuple[str, ...]:
        """One row `(D,)` as people read it, column by column in its own unit."""
        named = zip(self.columns, self.places, strict=True)
        return tuple(column.words(row[place]) for column, place in named)

    def __repr__(self) -> str:
        """Name the columns, with all that decides what the network sees."""
        said = (
            f"{c.name}[{c.width}]"
            if isinstance(c, Categorical)
            else f"{c.name}~{c.mean:g}/{c.std:g}"
            for c in self.columns
        )
        return f"Tabular({', '.join(said)})"


def _heaviest(entries: Tensor) -> Tensor:
    chosen = torch.zeros_like(entries)
    return chosen.scatter(-1, entries.argmax(-1, keepdim=True), 1)


@lru_cache(maxsize=64)
def _statistics(table: Tabular, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every entry as stored; 0 and 1 for categories."""
    mean: list[float] = []
    std: list[float] = []
    for column in table.columns:
        if isinstance(column, Continuous):
            mean.append((column.mean - column.low) / (column.high - column.low))
            std.append(column.std / (column.high - column.low))
        else:
            mean.extend([0.0] * column.width)
            std.extend([1.0] * column.width)
    # Outside any transform, or the first one to ask would own the tensors and take them with it.
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        return tuple(torch.tensor(v, dtype=dtype, device=device) for v in (mean, std))  # type: ignore[return-value]
