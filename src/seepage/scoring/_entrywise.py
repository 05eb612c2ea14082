"""Metrics that compare entry by entry, for inputs of any kind.

Each metric gives one number per person, in float64 on the CPU whatever the inputs are on. Guesses
are scored as they came: an attack that leaves the valid range is not helped by clamping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Domain, Paired
from seepage.core._likeness import HALF_A_STEP
from seepage.core._scale import DECIBELS, Scale
from seepage.core.errors import require_within
from seepage.domains import domain_of


def kind_of(paired: Paired) -> Domain:
    """What the inputs are, by their shape if nobody has said."""
    return paired.domain or domain_of(paired.truth)


def differences(paired: Paired) -> Tensor:
    """The error of each entry, one row per person, `(B, D)` in float64.

    Tokens are the same or not, 0 or 1: how far apart their numbers are means nothing.
    """
    return kind_of(paired).subtract(paired.guess.cpu(), paired.truth.cpu()).flatten(1)


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
    scale: ClassVar[Scale] = DECIBELS

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

    tolerance: float = HALF_A_STEP

    def __post_init__(self) -> None:
        """Refuse a tolerance that nothing, or everything, would meet."""
        require_within("(0, 1)", tolerance=self.tolerance)

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        largest = differences(paired).abs().amax(1) / paired.peak
        return (largest < self.tolerance).double()
