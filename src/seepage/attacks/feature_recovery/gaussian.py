"""Which neurons of a head have Gaussian weights, as the tensor method assumes of all it uses."""

from __future__ import annotations

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
    """The largest group of neurons whose weights have one size; warn unless it looks Gaussian.

    A row of d standard normal numbers has a root mean square within a few 1 / sqrt(2 d) of one,
    which tells random neurons from trained ones.
    """
    size = head.weight.square().mean(1).sqrt()
    deviation = float(size.median())
    if deviation == 0:
        raise NotApplicable(f"half of the neurons of {head.layer!r} have no weight at all")
    # As wide as a hundred thousand such rows spread, and no wider: rows that PyTorch draws are
    # 0.58 of the length of a Gaussian's with its deviation divided by sqrt(d).
    slack = 4.5 / (2 * head.weight.shape[1]) ** 0.5
    chosen = torch.nonzero((size / deviation - 1).abs() < slack)[:, 0]
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


def _distance_from_normal(values: Tensor) -> float:
    from scipy.stats import kstest

    stride = max(1, len(values) // _ENTRIES)
    some = values[::stride].cpu().numpy()
    return float(kstest(some, "norm").statistic * len(some) ** 0.5)
