"""Rows of a table, with columns of numbers and of categories."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Domain, Rng
from seepage.core._likeness import TINY, Exactness, Likeness, Measure, Table
from seepage.core.errors import InvalidValue

# What single precision leaves open of a number that was computed, as a share of its range.
_ROUNDING = 2.0**-21
# Numbers of a column are looked at for at most so many decimals.
_MOST_DECIMALS = 6


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """A column of numbers, scaled to [0, 1] between two bounds.

    Args:
        name: What the column holds.
        low: The number stored as 0.
        high: The number stored as 1.
        mean: Of the population, in the column's own unit; normalised to 0.
        std: Standard deviation of the population; normalised to 1.
    """

    name: str
    low: float
    high: float
    mean: float
    std: float
    width: ClassVar[int] = 1  # entries in a row

    def __post_init__(self) -> None:
        if not (self.low < self.high and self.std > 0):
            raise InvalidValue(f"expected low < high and std > 0, got {self!r}")

    def words(self, entries: Tensor) -> str:
        """The number, in its own unit, with every digit that float32 holds of it.

        Example:
            >>> visits = Continuous(name="visits", low=-0.3, high=4.3, mean=2.0, std=1.4)
            >>> visits.words(torch.tensor(0.3 / 4.6))
            'visits: 0'
            >>> income = Continuous(name="income", low=9_000, high=98_000, mean=40_000, std=9_000)
            >>> income.words(torch.tensor((68_707.72 - 9_000) / 89_000))
            'income: 68707.72'
        """
        entry, span = float(entries.float()), self.high - self.low
        number = self.low + span * entry
        if math.isfinite(number):
            # The distance to the next number of float32, which has 29 binary digits fewer. The
            # product may be too small for a number.
            step = math.log10(span) + math.log10(math.ulp(entry) * 2**29)
            # float32 holds no zero between two bounds, but something like -1e-08.
            number = round(number, math.floor(-step)) + 0.0
        return f"{self.name}: {number:.15g}"


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """A column of categories, stored as a one-hot vector.

    Args:
        name: What the column holds.
        categories: Name of each category.
    """

    name: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.categories) < 2:
            raise InvalidValue(f"expected two categories or more, got {self!r}")

    @property
    def width(self) -> int:
        """Number of entries in a row."""
        return len(self.categories)

    def words(self, entries: Tensor) -> str:
        """The category with the largest entry."""
        return f"{self.name}: {self.categories[int(entries.argmax())]}"


Column = Continuous | Categorical


def round_outwards(low: float, high: float) -> tuple[float, float]:
    """Round to the next tenth of the range's power of ten, so that nobody's number is a bound.

    Example:
        >>> round_outwards(18.4, 97.0)
        (18.0, 98.0)
    """
    if high <= low:
        return low - 0.5, low + 0.5
    step = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    step = step if step * 10 < high - low else step / 10
    return (math.ceil(low / step) - 1) * step, (math.floor(high / step) + 1) * step


@dataclass(frozen=True)
class Tabular(Domain):
    """Rows `(D,)`: the entries of all columns, each in [0, 1].

    Args:
        columns: In the order of the entries.

    Example:
        >>> age = Continuous(name="age", low=18, high=98, mean=45, std=16)
        >>> vote = Categorical(name="vote", categories=("no", "yes"))
        >>> table = Tabular((age, vote))
        >>> table.words(torch.tensor([0.5, 0.2, 0.8]))
        ('age: 58', 'vote: yes')
        >>> table.project(torch.tensor([[1.5, 0.2, 0.8]])).tolist()
        [[1.0, 0.0, 1.0]]
    """

    kind = "rows"
    measure = "feature_accuracy"
    bounds = (0.0, 1.0)

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise InvalidValue("expected at least one column, got none")

    @cached_property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one row, `(D,)`."""
        return (sum(column.width for column in self.columns),)

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """The entries of each column in a row."""
        ends = accumulate((column.width for column in self.columns), initial=0)
        return tuple(slice(a, b) for a, b in pairwise(ends))

    @property
    def deviations(self) -> tuple[float | None, ...]:
        """Standard deviation of each column of numbers, scaled to [0, 1]; None for categories."""
        return tuple(
            c.std / (c.high - c.low) if isinstance(c, Continuous) else None for c in self.columns
        )

    def by_category(self, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Change the entries of every column of categories in rows `(..., D)`."""
        parts = [
            change(rows[..., place]) if isinstance(column, Categorical) else rows[..., place]
            for column, place in zip(self.columns, self.places, strict=True)
        ]
        return torch.cat(parts, dim=-1)

    def normalise(self, inputs: Tensor) -> Tensor:
        """Standardise the numbers and keep the categories."""
        mean, std = _statistics(self, inputs.dtype, inputs.device)
        return (inputs - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Undo `normalise`."""
        mean, std = _statistics(self, inputs.dtype, inputs.device)
        return inputs * std + mean

    def project(self, inputs: Tensor) -> Tensor:
        """Clamp the numbers, and choose the category with the largest entry."""

        def choose(entries: Tensor) -> Tensor:
            return torch.zeros_like(entries).scatter(-1, entries.argmax(-1, keepdim=True), 1)

        return self.by_category(inputs, choose).clamp(0, 1)

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
            if not bool((inside := (entries >= 0) & (entries <= 1)).all()):
                raise InvalidValue(
                    f"expected column {column.name!r} between its bounds, stored as 0 to 1, got "
                    f"{int((~inside).any(1).sum())} of {len(entries)} rows outside; were they made "
                    "with these columns?"
                )
        if not torch.equal(self.project(inputs), inputs):
            raise InvalidValue("expected one category per column, stored as one 1 among 0s")

    def exactness(self, others: Tensor, *, synthetic: bool = False) -> Exactness:
        """Every category must be right, and every number must round to the true one.

        To a whole number, or to as many decimals as the column has in the rows of others.
        """
        return _ByColumn(self, others, synthetic)

    def likeness(self, others: Tensor) -> Likeness:
        """Share of columns that agree, plain and weighed by how rare a value is among others."""
        return _ColumnLikeness(self, others)

    def words(self, row: Tensor) -> tuple[str, ...]:
        """Describe one row `(D,)` in words, every column in its own unit."""
        named = zip(self.columns, self.places, strict=True)
        return tuple(column.words(row[place]) for column, place in named)

    def __repr__(self) -> str:
        """Name the columns, with what decides how they are normalised."""
        said = (
            f"{c.name}[{c.width}]"
            if isinstance(c, Categorical)
            else f"{c.name}~{c.mean:g}/{c.std:g}"
            for c in self.columns
        )
        return f"Tabular({', '.join(said)})"


@lru_cache(maxsize=64)
def _statistics(table: Tabular, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every entry; 0 and 1 for categories."""
    mean: list[float] = []
    std: list[float] = []
    for column in table.columns:
        if isinstance(column, Continuous):
            mean.append((column.mean - column.low) / (column.high - column.low))
            std.append(column.std / (column.high - column.low))
        else:
            mean += [0.0] * column.width
            std += [1.0] * column.width
    # Made outside any transform: the cached tensors must outlive the transform that asks first.
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        return tuple(torch.tensor(v, dtype=dtype, device=device) for v in (mean, std))  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class _ByColumn(Exactness):
    """When a row is exact, column by column."""

    table: Tabular
    public: Tensor
    synthetic: bool

    def compare(self, guess: Tensor, candidates: Tensor) -> Tensor:
        """Whether a guess is each of the candidates `(C, D)`."""
        right = torch.ones(len(candidates), dtype=torch.bool)
        for place, tolerance in zip(self.table.places, self.tolerances, strict=True):
            own, theirs = guess[place].double(), candidates[:, place].double()
            if tolerance is None:
                right &= theirs.argmax(1) == own.argmax()
            else:
                right &= (theirs[:, 0] - own[0]).abs() < tolerance
        return right

    @cached_property
    def tolerances(self) -> tuple[float | None, ...]:
        """How far each number of a row may be off, as it is stored; None for categories."""
        return tuple(
            None
            if isinstance(column, Categorical)
            else self._find_tolerance(column, self.public[:, place.start])
            for column, place in zip(self.table.columns, self.table.places, strict=True)
        )

    def _find_tolerance(self, column: Continuous, stored: Tensor) -> float:
        """Half of the last decimal that the numbers have, or what rounding leaves open."""
        span = column.high - column.low
        numbers, open_ = column.low + span * stored.double(), span * _ROUNDING
        for decimals in range(0 if self.synthetic else _MOST_DECIMALS + 1):
            step = 10.0**-decimals
            if step < 2 * open_:
                break
            if bool(((numbers / step).round() * step - numbers).abs().amax() <= open_ / 2):
                return step / 2 / span
        return _ROUNDING

    def count_alike(self, truth: Tensor) -> float:
        """Among how many inputs luck would have to choose, to guess just this one.

        In a narrow table these may be few. Luck may choose any value that occurs, or each value as
        often as it occurs; whichever finds this row more easily counts.
        """
        values, rows = 1.0, 1.0
        for place, tolerance in zip(self.table.places, self.tolerances, strict=True):
            column = self.public[:, place]
            if tolerance is None:
                kinds = column.argmax(1)
                same = kinds == truth[place].argmax()
            else:
                kinds = (column[:, 0].double() / (2 * tolerance)).round()
                same = (column[:, 0].double() - truth[place].double()).abs() < tolerance
            values *= len(set(kinds.tolist()))
            rows *= len(column) / max(1, int(same.sum()))
        return min(values, rows)


@dataclass(frozen=True, eq=False)
class _ColumnLikeness(Likeness):
    """Rows, compared column by column."""

    domain: Tabular
    public: Tensor
    measures = {  # noqa: RUF012 - never changed
        "columns": Measure(enough=(0.8, 0.8)),
        "rare columns": Measure(),
    }

    def table(self, guesses: Tensor, candidates: Tensor) -> Table:
        """Share of columns that agree, plain and weighed by how rare the candidate's value is."""
        agreement, weight = [], []
        for place, deviation in zip(self.domain.places, self.domain.deviations, strict=True):
            first, second, others = (
                rows[:, place].float() for rows in (guesses, candidates, self.public)
            )
            if deviation is None:
                ours, theirs = first.argmax(1), second.argmax(1)
                agreement.append((ours[:, None] == theirs[None]).float())
                common = others.argmax(1).bincount(minlength=second.shape[1])[theirs] / len(
                    self.public
                )
            else:
                spread = max(float(others.std()), 1e-6)
                near = (first[:, 0, None] - second[None, :, 0]).abs() / spread
                agreement.append((1 - near).clamp(min=0))
                ends = second[None, :, 0] + 0.5 * spread * torch.tensor([[-1.0], [1.0]])
                below = torch.searchsorted(others[:, 0].sort().values, ends)
                common = (below[1] - below[0]) / len(self.public)
            weight.append(-torch.log(common.clamp(min=1 / (len(self.public) + 1))))
        agree, rarity = torch.stack(agreement, dim=-1), torch.stack(weight, dim=-1)
        weighed = (agree * rarity).sum(-1) / (rarity.sum(-1) + TINY)
        return {"columns": agree.mean(-1), "rare columns": weighed}
