"""Which neurons of a head have Gaussian weights, as the tensor method assumes of all it uses."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.head import TwoLayerHead
from seepage.core.errors import NotApplicable

_ENTRIES = 200_000
# The 99.9 % point of sqrt(N) times the Kolmogorov-Smirnov distance.
_SUSPICIOUS = 1.95


class NotGaussianWarning(UserWarning):
    """The weights that the tensor method reads moments from do not look Gaussian."""


@dataclass(frozen=True, eq=False)
class GaussianNeurons:
    """The neurons to use.

    Args:
        chosen: Their numbers, `(v,)`.
        deviation: Of their weights.
        statistic: sqrt(N) times the Kolmogorov-Smirnov distance from a Gaussian; below 1.95 for
            999 of 1000 layers that are.
    """

    chosen: Tensor
    deviation: float
    statistic: float


def gaussian_neurons(head: TwoLayerHead) -> GaussianNeurons:
    """The neurons that the head was given at random; warn unless their weights look Gaussian.

    Those of the paper have one column of A in common, which training would have moved apart. Where
    no such column holds for most neurons, it is the largest group whose weights have one size: a
    row of d standard normal numbers has a root mean square within a few 1 / sqrt(2 d) of one.

    References:
        Liu et al., 2024, appendix F (liu2024systematic) on the columns of A
    """
    chosen = torch.nonzero(_alike(head))[:, 0]
    weight = head.weight[chosen]
    deviation = float(weight.square().mean().sqrt())
    statistic = _distance_from_normal(weight.flatten() / deviation)
    if statistic > _SUSPICIOUS:
        warnings.warn(
            f"the weights of {head.layer!r} are not Gaussian (sqrt(N) times the Kolmogorov-Smirnov "
            f"distance is {statistic:.1f}, above {_SUSPICIOUS}), so the moments of tensor_features "
            "are biased; exact_features() does not need Gaussian weights",
            NotGaussianWarning,
            stacklevel=2,
        )
    return GaussianNeurons(chosen, deviation, statistic)


def one_column(head: TwoLayerHead) -> Tensor | None:
    """Which neurons `(m,)` have one column of A in common, if most do."""
    columns = head.above.T
    common: Tensor = (columns == columns.median(0).values).all(1)
    return common if 2 * int(common.sum()) > len(common) > 1 else None


def _alike(head: TwoLayerHead) -> Tensor:
    """Which neurons belong to the largest group, `(m,)`."""
    common = one_column(head)
    if common is not None:
        return common
    size = head.weight.square().mean(1).sqrt()
    usual = float(size.median())
    if usual == 0:
        raise NotApplicable(f"half of the neurons of {head.layer!r} have no weight at all")
    near: Tensor = (size / usual - 1).abs() < 6 / (2 * head.weight.shape[1]) ** 0.5
    return near


def _distance_from_normal(values: Tensor) -> float:
    """sqrt(N) sup_x |F_N(x) - Phi(x)|, where the values are: no copy to the host, no scipy."""
    stride = max(1, len(values) // _ENTRIES)
    some = values[::stride].sort().values
    below = torch.special.ndtr(some)
    steps = torch.arange(len(some) + 1, dtype=some.dtype, device=some.device) / len(some)
    distance = torch.maximum((steps[1:] - below).max(), (below - steps[:-1]).max())
    return float(distance * math.sqrt(len(some)))
