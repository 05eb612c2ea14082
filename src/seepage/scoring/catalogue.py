"""Every metric by name, and which of them fit the inputs at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from seepage.core import Metric, Paired
from seepage.core.errors import MissingExtra, NotApplicable
from seepage.scoring.entrywise import L1, MSE, PSNR, RMSE, ExactMatch
from seepage.scoring.features import FeatureAccuracy, table_of
from seepage.scoring.label import LabelAccuracy
from seepage.scoring.lpips import LPIPS, check_lpips
from seepage.scoring.ssim import SSIM, check_ssim
from seepage.scoring.tokens import TokenAccuracy, check_tokens

_ALL: tuple[Metric, ...] = (
    MSE(),
    RMSE(),
    PSNR(),
    SSIM(),
    LPIPS(),
    L1(),
    LabelAccuracy(),
    ExactMatch(),
    FeatureAccuracy(),
    TokenAccuracy(),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})

_CHECKS: Mapping[str, Callable[[Paired], object]] = {
    "ssim": check_ssim,
    "lpips": check_lpips,
    "feature_accuracy": table_of,
    "token_accuracy": check_tokens,
}


def catalogue() -> dict[str, str]:
    """What each metric is, in one line, by name.

    Example:
        >>> catalogue()["mse"]
        'Mean squared error: mean_j (guess_j - truth_j)^2.'
    """
    return {name: (type(m).__doc__ or "").partition("\n")[0] for name, m in METRICS.items()}


def applicable(paired: Paired) -> tuple[Metric, ...]:
    """The metrics that make sense for these inputs and can run here, in catalogue order.

    Left out are `ssim` and `lpips` for signals and for images too small for them, and `lpips`
    where its weights are not found; `feature_accuracy` but for tables, `token_accuracy` but for
    tokens.

    Example:
        >>> import torch
        >>> beats = torch.zeros(1, 1, 140)
        >>> [m.name for m in applicable(Paired(beats, beats, torch.tensor([0]), None, (0,)))]
        ['mse', 'rmse', 'psnr', 'l1', 'label_accuracy', 'exact']
    """
    return tuple(metric for name, metric in METRICS.items() if _fits(name, paired))


def _fits(name: str, paired: Paired) -> bool:
    try:
        _CHECKS.get(name, _always)(paired)
    except (NotApplicable, MissingExtra):
        return False
    return True


def _always(_paired: Paired) -> None:
    """Fit everything."""
