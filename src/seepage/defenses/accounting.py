"""What DP-SGD promises: epsilon, for a given delta."""

from __future__ import annotations

import math
from typing import Literal

from seepage.core.errors import InvalidValue, MissingExtra, UnknownName

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
