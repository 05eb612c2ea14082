"""Metrics that compare entry by entry, for inputs of any kind, and when a guess is exact.

Each metric gives one number per person, in float64 on the CPU whatever the inputs are on. Guesses
are scored as they came: an attack that leaves the valid range is not helped by clamping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Domain, Paired
from seepage.core.errors import require_within
from seepage.domains.tabular import Categorical, Continuous, Tabular
from seepage.domains.tokens import Tokens

# What single precision leaves open of a number that was computed, as a share of its range.
_ROUNDING = 2.0**-21
# Numbers of a column are looked at for at most so many decimals.
_MOST_DECIMALS = 6


def subtract_truth(guess: Tensor, truth: Tensor) -> Tensor:
    """Guess minus truth in float64; of tokens, which have no distance, 1.0 where they differ.

    Example:
        >>> import torch
        >>> subtract_truth(torch.tensor([7, 8]), torch.tensor([7, 3])).tolist()
        [0.0, 1.0]
    """
    if truth.is_floating_point():
        return guess.double() - truth.double()
    return (guess != truth).double()


def differences(paired: Paired) -> Tensor:
    """Guess minus truth, one row per person, `(B, D)` in float64.

    Tokens are the same or not, 0 or 1: how far apart their numbers are means nothing.
    """
    return subtract_truth(paired.guess.cpu(), paired.truth.cpu()).flatten(1)


@dataclass(frozen=True)
class MSE:
    """Mean squared error: mean_j (guess_j - truth_j)^2.

    Example:
        >>> labels = torch.tensor([0])
        >>> MSE()(Paired(torch.zeros(1, 4), torch.full((1, 4), 0.5), labels, None, (0,))).tolist()
        [0.25]

    References: Zhu et al., 2019 (zhu2019deep)
    """

    name: ClassVar[str] = "mse"
    higher_leaks_more: ClassVar[bool] = False

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        return differences(paired).square().mean(1)


@dataclass(frozen=True)
class RMSE:
    """Root of the mean squared error, in the units of the input.

        sqrt(mean_j (guess_j - truth_j)^2)

    Example:
        >>> labels = torch.tensor([0])
        >>> RMSE()(Paired(torch.zeros(1, 4), torch.full((1, 4), 0.5), labels, None, (0,))).tolist()
        [0.5]

    Deviations: the "RMSE" tables made with GradAttack divide by the largest error first; see
        `seepage_papers.legacy.rmse_gradattack`.
    References: Yin et al., 2021 (yin2021see)
    """

    name: ClassVar[str] = "rmse"
    higher_leaks_more: ClassVar[bool] = False

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        return MSE()(paired).sqrt()


@dataclass(frozen=True)
class PSNR:
    """Peak signal-to-noise ratio in decibels, in natural units.

        10 log10(peak^2 / MSE)

    A guess that equals the truth exactly gives infinity, for that person alone.

    Example:
        >>> labels = torch.tensor([0])
        >>> truth, guess = torch.zeros(1, 4), torch.full((1, 4), 0.1, dtype=torch.float64)
        >>> round(PSNR()(Paired(truth, guess, labels, None, (0,))).item(), 6)
        20.0

    Deviations: several papers print PSNR on normalised inputs or with another peak; see
        `seepage_papers.legacy`.
    References: Geiping et al., 2020 (geiping2020inverting)
    """

    name: ClassVar[str] = "psnr"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        return -10 * torch.log10(MSE()(paired) / paired.peak**2)


@dataclass(frozen=True)
class L1:
    """Mean absolute error per entry: mean_j |guess_j - truth_j|.

    Example:
        >>> labels = torch.tensor([0])
        >>> L1()(Paired(torch.zeros(1, 4), torch.full((1, 4), -0.5), labels, None, (0,))).tolist()
        [0.5]

    Deviations: the paper's table sums over the entries; see `seepage_papers.legacy.l1_sum_002`.
    References: Qian and Hansen, 2020 (qian2020what)
    """

    name: ClassVar[str] = "l1"
    higher_leaks_more: ClassVar[bool] = False

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        return differences(paired).abs().mean(1)


@dataclass(frozen=True, kw_only=True)
class ExactMatch:
    """Whether the guess is the private input: 1.0 if it rounds to the same 8-bit image, else 0.0.

        max_j |guess_j - truth_j| / peak < tolerance

    Args:
        tolerance: Largest error that counts as none, as a share of the range of values; the
            default is half a step of an 8-bit image.

    Example:
        >>> truth, guess = torch.zeros(2, 4), torch.tensor([[0.001] * 4, [0.003] * 4])
        >>> ExactMatch()(Paired(truth, guess, torch.tensor([0, 1]), None, (0, 1))).tolist()
        [1.0, 0.0]

    References: Dimitrov et al., 2024 (dimitrov2024spear)
    """

    name: ClassVar[str] = "exact"
    higher_leaks_more: ClassVar[bool] = True

    tolerance: float = 0.5 / 255

    def __post_init__(self) -> None:
        """Refuse a tolerance that nothing, or everything, would meet."""
        require_within("(0, 1)", tolerance=self.tolerance)

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        largest = differences(paired).abs().amax(1) / paired.peak
        return (largest < self.tolerance).double()


@dataclass(frozen=True, eq=False)
class Exactness:
    """The rule for one kind of input.

    An image or signal is exact if it rounds to the same 8 bits, a text if all its words are right.
    In a row of a table every category must be right, and every number must round to the true one:
    to a whole number, or to as many decimals as the column has in public rows.

    Args:
        public: Inputs of other people, which tell the decimals of a column.
        domain: What an input is; tells the columns of a table and the padding of texts.
        synthetic: Whether the others are made up, so that they tell nothing.

    Example:
        >>> age = Continuous(name="age", low=0, high=100, mean=40, std=20)
        >>> rule = Exactness(torch.tensor([[0.31], [0.62]]), Tabular((age,)))
        >>> rule.compare(torch.tensor([0.306]), torch.tensor([[0.31], [0.30]])).tolist()
        [True, False]
    """

    public: Tensor
    domain: Domain | None = None
    synthetic: bool = False

    def compare(self, guess: Tensor, candidates: Tensor) -> Tensor:
        """Whether a guess is each of the candidates `(C, ...)`, exactly."""
        if isinstance(self.domain, Tabular):
            return self._compare_rows(guess, candidates, self.domain)
        if not candidates.is_floating_point():
            padding = self.domain.padding if isinstance(self.domain, Tokens) else None
            wrong = guess != candidates
            return ~(wrong if padding is None else wrong & (candidates != padding)).flatten(1).any(
                1
            )
        apart = (guess.double() - candidates.double()).abs().flatten(1).amax(1)
        return apart < ExactMatch().tolerance * self._width

    def _compare_rows(self, guess: Tensor, candidates: Tensor, table: Tabular) -> Tensor:
        right = torch.ones(len(candidates), dtype=torch.bool)
        for place, tolerance in zip(table.places, self.tolerances, strict=True):
            own, theirs = guess[place].double(), candidates[:, place].double()
            if tolerance is None:
                right &= theirs.argmax(1) == own.argmax()
            else:
                right &= (theirs[:, 0] - own[0]).abs() < tolerance
        return right

    @cached_property
    def _width(self) -> float:
        """The range that a value can take."""
        if self.domain is not None:
            low, high = self.domain.bounds
            return high - low
        return float(self.public.max() - self.public.min()) or 1.0

    @cached_property
    def tolerances(self) -> tuple[float | None, ...]:
        """How far each number of a row may be off, as it is stored; None for categories."""
        assert isinstance(self.domain, Tabular)
        return tuple(
            None
            if isinstance(column, Categorical)
            else self._find_tolerance(column, self.public[:, place.start])
            for column, place in zip(self.domain.columns, self.domain.places, strict=True)
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
        if not isinstance(self.domain, Tabular):
            return math.inf
        values, rows = 1.0, 1.0
        for place, tolerance in zip(self.domain.places, self.tolerances, strict=True):
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
