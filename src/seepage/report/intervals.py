"""Confidence intervals over people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
BLOCKS, BLOCK = 10, 100


@dataclass(frozen=True)
class Interval:
    """A median or a mean, and its 95 % confidence interval."""

    low: float
    middle: float
    high: float


def median_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Percentile bootstrap of the median over people; infinity (an exact guess) is allowed.

    Example:
        >>> median_interval([3.0, 3.0, 3.0])
        Interval(low=3.0, middle=3.0, high=3.0)
    """
    return _bootstrap(values, np.median, seed)


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean over people, which papers print; values must be finite.

    Example:
        >>> mean_interval([1.0, 1.0, 4.0]).middle
        2.0
    """
    return _bootstrap(values, np.mean, seed)


def _bootstrap(values: Sequence[float], statistic: Callable[..., Any], seed: int) -> Interval:
    """Percentile bootstrap of a statistic.

    References:
        Efron, 1979 (efron1979bootstrap)
    """
    people, rng = np.asarray(values, dtype=float), np.random.default_rng(seed)
    # In blocks, to save memory with many people.
    draws = (rng.integers(len(people), size=(BLOCK, len(people))) for _ in range(BLOCKS))
    found = np.concatenate([statistic(people[draw], axis=1) for draw in draws])
    tail = (1 - CONFIDENCE) / 2
    # Take observed values only: infinities cannot be interpolated.
    low, high = np.quantile(found, [tail, 1 - tail], method="inverted_cdf")
    return Interval(float(low), float(statistic(people)), float(high))


def share_not_ruled_out(people: int) -> float:
    """The share of a population that may still be recognisable if none of `people` was.

    This is the exact binomial bound for zero events, `1 - (1 - confidence)^(1 / people)`.

    Example:
        >>> round(share_not_ruled_out(8), 3)
        0.312

    References:
        Clopper and Pearson, 1934 (clopper1934use)
    """
    return float(1 - (1 - CONFIDENCE) ** (1 / people))
