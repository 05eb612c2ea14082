"""How much likelier an event becomes because one person takes part: the blow-up function."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.errors import InvalidValue

# Parts of the sample whose spread gives the error of the estimate.
BLOCKS = 20


@dataclass(frozen=True)
class Estimated:
    """A number found by sampling, and its standard error."""

    value: float
    error: float


def gaussian_blow_up(kappa: float, *, noise_multiplier: float, steps: int = 1) -> float:
    """The blow-up of DP-SGD in which everybody takes part in every step.

    T Gaussian mechanisms are one with mu = sqrt(T) / sigma, of which the most telling event of
    probability kappa has, with the person, the probability

        B(kappa) = Phi(Phi^-1(kappa) + mu)

    Args:
        kappa: Probability of the event without the person.
        noise_multiplier: sigma, the noise in units of the clipping norm.
        steps: T, how many updates are shared.

    Example:
        >>> round(gaussian_blow_up(0.1, noise_multiplier=1.0), 4)
        0.3891
        >>> gaussian_blow_up(0.1, noise_multiplier=0.0)
        1.0

    References:
        Hayes et al., 2023 (hayes2023bounding), the blow-up of two Gaussians; Dong et al., 2022
        (dong2022gaussian), the trade-off function behind it
    """
    from scipy.special import ndtr, ndtri

    check(kappa, noise_multiplier, steps)
    if noise_multiplier == 0 or kappa == 1:
        return 1.0
    return float(ndtr(ndtri(kappa) + math.sqrt(steps) / noise_multiplier))


def subsampled_blow_up(
    kappa: float,
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int = 1,
    samples: int = 100_000,
    rng: Rng,
) -> Estimated:
    """The blow-up of DP-SGD on random batches, by Monte Carlo.

    In the worst case, the person's clipped gradient always points the same way, a step shows one
    number, and the likelihood ratio of taking part with probability q is

        r(x) = prod_t (1 - q + q exp(x_t / sigma - 1 / (2 sigma^2)))

    The most telling event of probability kappa is {r > c}, with c such that this is so.

    Args:
        kappa: Probability of the event without the person.
        noise_multiplier: sigma, the noise in units of the clipping norm.
        sample_rate: q, the probability that one person takes part in a step.
        steps: T, how many updates are shared.
        samples: Runs that are drawn.
        rng: For the draws.

    Deviations:
        The paper draws runs without the person and weighs them by r. Here runs with the person
        are drawn and weighed by 1 / r, which also sees events of tiny kappa.

    References:
        Hayes et al., 2023 (hayes2023bounding), the Monte-Carlo estimate of the bound
    """
    check(kappa, noise_multiplier, steps)
    if not 0 < sample_rate <= 1:
        raise InvalidValue(f"expected a sample_rate in (0, 1], got {sample_rate!r}")
    if samples < BLOCKS:
        raise InvalidValue(f"expected samples >= {BLOCKS}, got {samples!r}")
    if noise_multiplier == 0 or kappa == 1:
        return Estimated(1.0, 0.0)
    ratios = _ratios(noise_multiplier, sample_rate, steps, samples, rng)
    parts = [_power(part, kappa) for part in ratios.tensor_split(BLOCKS)]
    error = float(torch.tensor(parts, dtype=torch.float64).std()) / math.sqrt(BLOCKS)
    return Estimated(_power(ratios, kappa), error)


def check(kappa: float, noise_multiplier: float, steps: int) -> None:
    """Refuse what is no probability, no noise or no number of steps."""
    if not 0 < kappa <= 1:
        raise InvalidValue(f"expected kappa as a probability in (0, 1], got {kappa!r}")
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise InvalidValue(f"expected noise_multiplier >= 0, got {noise_multiplier!r}")
    if steps < 1:
        raise InvalidValue(f"expected steps >= 1, got {steps!r}")


def _ratios(sigma: float, rate: float, steps: int, samples: int, rng: Rng) -> Tensor:
    """Logarithms of r in runs with the person, `(samples,)`."""
    wide = torch.zeros((), dtype=torch.float64)
    total = torch.zeros(samples, dtype=torch.float64)
    for step in range(steps):
        took_part = rng.fork("takes part", step).uniform((samples,), like=wide) < rate
        seen = took_part / sigma + rng.fork("noise", step).normal((samples,), like=wide)
        # log(1 - q) alone is minus infinity at q = 1, where the sum is fine.
        shown = math.log(rate) + seen / sigma - 0.5 / sigma**2
        absent = torch.tensor(1 - rate, dtype=torch.float64).log()
        total = total + torch.logaddexp(absent, shown)
    return total


def _power(ratios: Tensor, kappa: float) -> float:
    """P(r > c) with Q(r > c) = kappa, where the draws are of P and Q is P weighed by 1 / r."""
    likeliest = ratios.sort(descending=True).values
    without = (-likeliest).exp().cumsum(0) / len(ratios)
    inside = int(torch.searchsorted(without, torch.tensor(kappa, dtype=torch.float64)))
    if inside == len(ratios):
        return 1.0
    before = float(without[inside - 1]) if inside else 0.0
    # Part of the next run belongs to the event, as randomised tests have it.
    share = (kappa - before) / (float(without[inside]) - before)
    return (inside + share) / len(ratios)
