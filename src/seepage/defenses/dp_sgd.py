"""Differentially private SGD, as the chain it is."""

from __future__ import annotations

import math
from typing import Literal

from seepage.core import Defense
from seepage.core.errors import InvalidValue, MissingExtra, UnknownName
from seepage.defenses.chain import chain
from seepage.defenses.clip import AddGaussian, ClipEach, Mean


def dp_sgd(*, max_norm: float, noise_multiplier: float, batch_size: int) -> Defense:
    """Clip every example's gradient, average, and add noise in proportion to the clipping norm.

        (1/B) (sum_i g_i min(1, C / ||g_i||) + N(0, sigma^2 C^2 I))

    Args:
        max_norm: C, the most one person can move the sum.
        noise_multiplier: sigma, the standard deviation of the noise on the sum in units of C.
        batch_size: B, the expected number of examples, fixed in advance. Were it the number that
            came, one person more or less would also move what the others contribute.

    Example:
        >>> dp_sgd(max_norm=1.0, noise_multiplier=2.0, batch_size=4)
        chain(ClipEach(1.0), Mean(over=4), AddGaussian(0.5))

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise InvalidValue(f"expected noise_multiplier >= 0, got {noise_multiplier!r}")
    if batch_size < 1:
        raise InvalidValue(f"expected batch_size >= 1, got {batch_size!r}")
    std = noise_multiplier * max_norm / batch_size
    return chain(ClipEach(max_norm), Mean(over=batch_size), AddGaussian(std))


Accountant = Literal["rdp", "prv"]


def epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: Accountant = "rdp",
) -> float:
    """Epsilon of DP-SGD on random batches, from one of Opacus's accountants.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        sample_rate: Probability that one person takes part in a step.
        steps: How many updates are shared.
        delta: The probability with which the promise may fail.
        accountant: "rdp" composes Rényi divergences, "prv" privacy-loss distributions, which is
            tighter.

    Raises:
        MissingExtra: Opacus is not installed; `gaussian_epsilon` needs no extra.

    References:
        Abadi et al., 2016 (abadi2016deep); Mironov et al., 2019 (mironov2019sampled); Gopi et al.,
        2021 (gopi2021numerical)
    """
    _check(noise_multiplier, steps, delta)
    if not 0 < sample_rate <= 1:
        raise InvalidValue(f"expected a sample_rate in (0, 1], got {sample_rate!r}")
    if accountant not in ("rdp", "prv"):
        raise UnknownName("accountant", accountant, ("rdp", "prv"))
    try:
        from opacus import accountants
    except ImportError as error:
        raise MissingExtra(
            "epsilon needs Opacus: pip install 'seepage[dp]', or use gaussian_epsilon where "
            "everybody takes part in every step"
        ) from error
    made = {"rdp": accountants.RDPAccountant, "prv": accountants.PRVAccountant}[accountant]()
    for _ in range(steps):
        made.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    return float(made.get_epsilon(delta))


def gaussian_epsilon(*, noise_multiplier: float, steps: int = 1, delta: float) -> float:
    """The exact epsilon where everybody takes part in every step.

    T Gaussian mechanisms are one with mu = sqrt(T) / sigma, whose smallest delta is

        delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)

    Args:
        noise_multiplier: sigma, the noise in units of the clipping norm.
        steps: T, how many updates are shared.
        delta: The probability with which the promise may fail.

    Example:
        >>> round(gaussian_epsilon(noise_multiplier=1.0, delta=1e-5), 3)
        4.377

    References:
        Balle and Wang, 2018, Theorem 8 (balle2018improving)
    """
    from scipy.optimize import brentq

    _check(noise_multiplier, steps, delta)
    if noise_multiplier == 0:
        return math.inf
    mu = math.sqrt(steps) / noise_multiplier
    if _delta(0.0, mu) <= delta:
        return 0.0
    # The classical bound for this delta, at which the exact one is always smaller.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(lambda e: _delta(e, mu) - delta, 0.0, high, xtol=1e-12))


def _delta(eps: float, mu: float) -> float:
    """delta(eps), with the product in logarithms, since e^eps alone may overflow."""
    from scipy.special import log_ndtr, ndtr

    second = math.exp(eps + float(log_ndtr(-mu / 2 - eps / mu)))
    return float(ndtr(mu / 2 - eps / mu)) - second


def _check(noise_multiplier: float, steps: int, delta: float) -> None:
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise InvalidValue(f"expected noise_multiplier >= 0, got {noise_multiplier!r}")
    if steps < 1:
        raise InvalidValue(f"expected steps >= 1, got {steps!r}")
    if not 0 < delta < 1:
        raise InvalidValue(f"expected delta in (0, 1), got {delta!r}")
