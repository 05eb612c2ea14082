"""Lower bounds on epsilon from guesses of who was in: over many runs, or in one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.defenses._clip import gaussian_epsilon
from seepage.numerics._significance import lower_limit, upper_limit

# Shares of the canaries that are guessed in one run; each has its part of the error.
_SHARES = (1.0, 0.5, 0.2, 0.05)
# No lower bound above this is looked for.
_LARGEST = 100.0


def bound_from_trials(inside: Tensor, outside: Tensor, *, delta: float, error: float) -> float:
    """Lower bound on epsilon from scores of independent runs with and without a canary.

    Any test of an (epsilon, delta)-private run has

        TPR <= e^epsilon FPR + delta,   TNR <= e^epsilon FNR + delta

    The threshold is chosen on the first half of the runs, and the rates of the second half are
    replaced by the ends of their exact intervals.

    Args:
        inside: Scores of runs with the canary, `(n,)`; higher speaks for it.
        outside: Scores of runs without it, `(n,)`.
        delta: Of the promise.
        error: Probability that the bound is too high.

    Example:
        >>> clear, blurred = torch.ones(200), torch.zeros(200)
        >>> round(bound_from_trials(clear, blurred, delta=1e-5, error=0.05), 2)
        3.28

    References:
        Jagielski et al., 2020 (jagielski2020auditing); Clopper and Pearson, 1934 (clopper1934use)
    """

    def compare(tpr: float, fpr: float) -> float:
        return math.log((tpr - delta) / fpr) if tpr > delta and fpr > 0 else 0.0

    return _best_threshold(inside, outside, error, compare)


def bound_gaussian_from_trials(
    inside: Tensor, outside: Tensor, *, delta: float, error: float
) -> float:
    """The same for a Gaussian mechanism, whose whole trade-off follows from one threshold.

        mu >= Phi^-1(TPR) - Phi^-1(FPR),   epsilon = the epsilon of mu at delta

    Tighter, and a bound only if the mechanism is Gaussian or nearly so. Canaries of one run in
    orthogonal directions may stand for runs, if the noise in these directions is independent.

    Example:
        >>> from seepage.core import Rng
        >>> key = Rng(0)
        >>> scores = key.normal((1000,)) + 1, key.fork("out").normal((1000,))
        >>> found = bound_gaussian_from_trials(*scores, delta=1e-5, error=0.05)
        >>> 2.0 < found < gaussian_epsilon(noise_multiplier=1.0, delta=1e-5)
        True

    References:
        Nasr et al., 2023 (nasr2023tight); Dong et al., 2022 (dong2022gaussian); Andrew et al., 2024
        (andrew2024one) for canaries of one run
    """
    from scipy.special import ndtri

    mu = _best_threshold(inside, outside, error, lambda t, f: float(ndtri(t) - ndtri(f)))
    return gaussian_epsilon(noise_multiplier=1 / mu, delta=delta) if mu > 0 else 0.0


def _best_threshold(
    inside: Tensor, outside: Tensor, error: float, bound: Callable[[float, float], float]
) -> float:
    """The bound at the threshold that looks best on the first half, from the second half."""
    if min(len(inside), len(outside)) < 4:
        raise InvalidValue(
            f"expected 4 runs or more of both kinds, got {len(inside)} and {len(outside)}"
        )
    chosen, best = (0.0, 1), 0.0
    first_in, second_in = _halve(inside)
    first_out, second_out = _halve(outside)
    thresholds = torch.quantile(
        torch.cat([first_in, first_out]), torch.linspace(0, 1, 101, dtype=torch.float64)
    )
    for threshold in thresholds.tolist():
        for sign in (1, -1):
            found = bound(*_limits(first_in, first_out, threshold, sign, error))
            if found > best:
                chosen, best = (threshold, sign), found
    return max(0.0, bound(*_limits(second_in, second_out, *chosen, error)))


def _halve(scores: Tensor) -> tuple[Tensor, Tensor]:
    wide = scores.double()
    return wide[: len(wide) // 2], wide[len(wide) // 2 :]


def _limits(
    inside: Tensor, outside: Tensor, threshold: float, sign: int, error: float
) -> tuple[float, float]:
    """The least true-positive and the most false-positive rate that the counts allow.

    With sign -1, what is below the threshold is taken for a run without the canary.
    """
    if sign > 0:
        hits, alarms = int((inside > threshold).sum()), int((outside > threshold).sum())
        return (
            lower_limit(hits, len(inside), error / 2),
            upper_limit(alarms, len(outside), error / 2),
        )
    hits, alarms = int((outside <= threshold).sum()), int((inside <= threshold).sum())
    return lower_limit(hits, len(outside), error / 2), upper_limit(alarms, len(inside), error / 2)


def bound_from_one_run(scores: Tensor, is_in: Tensor, *, delta: float, error: float) -> float:
    """Lower bound on epsilon from one run, in which each canary was included by a fair coin.

    The highest scores are guessed to be in and the lowest out. Of r guesses among m canaries, the
    number v that is right under (epsilon, delta)-privacy has

        P(v >= x) <= P(X >= x) + 2 m delta max_i P(x - i <= X < x) / i,
        X ~ Binomial(r, 1 / (1 + e^-epsilon))

    The largest epsilon for which that is below the error is the bound. Several r are tried, with
    their part of the error each.

    Args:
        scores: Of the canaries, `(m,)`; higher speaks for having been in.
        is_in: What the coins said, `(m,)`.
        delta: Of the promise.
        error: Probability that the bound is too high.

    Example:
        >>> coins = torch.arange(200) % 2 == 0
        >>> round(bound_from_one_run(coins.float(), coins, delta=1e-5, error=0.05), 2)
        3.8

    References:
        Steinke et al., 2023 (steinke2023privacy)
    """
    return _largest_rejected(
        scores, is_in, error, lambda r, v, eps: _one_run_tail(len(is_in), r, v, eps, delta)
    )


def _one_run_tail(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability that so many guesses are right under (epsilon, delta)-privacy.

    Example:
        >>> _one_run_tail(10, 10, 10, 0.0, 0.0) == 2.0**-10
        True
    """
    from scipy.stats import binom

    share = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, share))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    steps = torch.arange(1, right + 1, dtype=torch.float64)
    below = torch.from_numpy(binom.pmf(right - steps.numpy(), guesses, share)).cumsum(0)
    return min(1.0, tail + 2 * canaries * delta * float((below / steps).max()))


def _largest_rejected(
    scores: Tensor, is_in: Tensor, error: float, tail: Callable[[int, int, float], float]
) -> float:
    """The largest parameter that the guesses reject, over several numbers of guesses."""
    order = scores.double().argsort(descending=True)
    best = 0.0
    for share in _SHARES:
        half = max(1, int(share * len(order)) // 2)
        top, bottom = is_in[order[:half]], is_in[order[-half:]]
        right, guesses = int(top.sum()) + int((~bottom).sum()), 2 * half
        if tail(guesses, right, 0.0) > error / len(_SHARES):
            continue
        low, high = 0.0, _LARGEST
        while high - low > 1e-3:
            middle = (low + high) / 2
            rejected = tail(guesses, right, middle) <= error / len(_SHARES)
            low, high = (middle, high) if rejected else (low, middle)
        best = max(best, low)
    return best
