"""Every metric by name, and which of them fit the inputs at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from seepage.core import Metric, Paired
from seepage.core.construct import construct
from seepage.core.errors import InvalidValue, MissingExtra, NotApplicable
from seepage.core.plugins import Catalogue, find_part, first_line
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


def _made(name: str, found: object) -> Metric:
    """A metric, made of an instance, a class, or a function without arguments."""
    ready = isinstance(found, Metric) and not isinstance(found, type)
    made = construct(name, found, {}) if callable(found) and not ready else found
    if not isinstance(made, Metric):
        raise InvalidValue(
            f"expected {name} to be a metric with `name` and `higher_leaks_more`, got "
            f"{type(made).__name__}"
        )
    return made


def _named(name: str, found: object) -> Metric:
    """A metric that calls itself as its package does, since records know it by its own name."""
    made = _made(name, found)
    if made.name != name:
        raise InvalidValue(f"it calls itself {made.name!r}")
    return made


METRICS: Catalogue[Metric] = Catalogue(
    "metric", "seepage.metrics", {metric.name: metric for metric in _ALL}, adapt=_named
)

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
    return {name: first_line(type(metric)) for name, metric in METRICS.items()}


def find_metric(name: str) -> Metric:
    """The metric of a name in the catalogue, or of a path `package.module:factory`.

    Example:
        >>> find_metric("psnr").higher_leaks_more
        True

    Raises:
        UnknownName: No metric of that name.
        InvalidValue: The path leads to no metric, or to one whose name is taken.
    """
    found = find_part("metric", name, METRICS)
    if name in METRICS:
        return found
    made = _made(name, found)
    if made.name in METRICS:
        raise InvalidValue(
            f"expected a metric with a name of its own, got {name}, which calls itself "
            f"{made.name!r} as another one does"
        )
    return made


def applicable(paired: Paired) -> tuple[Metric, ...]:
    """The built-in metrics that make sense for these inputs and can run here, in their order.

    Left out are `ssim` and `lpips` for signals and for images too small for them, and `lpips`
    where its weights are not found; `feature_accuracy` but for tables, `token_accuracy` but for
    tokens. Metrics of other packages are measured where they are asked for by name.

    Example:
        >>> import torch
        >>> beats = torch.zeros(1, 1, 140)
        >>> [m.name for m in applicable(Paired(beats, beats, torch.tensor([0]), None, (0,)))]
        ['mse', 'rmse', 'psnr', 'l1', 'label_accuracy', 'exact']
    """
    return tuple(metric for name, metric in METRICS.built_in.items() if _fits(name, paired))


def _fits(name: str, paired: Paired) -> bool:
    try:
        _CHECKS.get(name, _always)(paired)
    except (NotApplicable, MissingExtra):
        return False
    return True


def _always(_paired: Paired) -> None:
    """Fit everything."""
