"""Bounds from differential privacy: how often, and how closely, any attack can reconstruct.

Throughout, `noise_multiplier` is sigma, the noise in units of the clipping norm, and `steps` is T,
the number of shared updates. kappa is the probability that an attack succeeds without any update.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds._bound import UNBIASED, LowerBound, bound_below
from seepage.clients._gradient import Gradient
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core._client import Client
from seepage.core.errors import InvalidValue, NotApplicable, require_at_least, require_within
from seepage.defenses._clip import noise_multiplier

# The spread over this many parts of the sample gives the error of the estimate.
BLOCKS = 20


@dataclass(frozen=True)
class Estimated:
    """An estimate from samples, and its standard error."""

    value: float
    error: float


def gaussian_blow_up(kappa: float, *, noise_multiplier: float, steps: int = 1) -> float:
    """The blow-up of DP-SGD in which every example takes part in every step.

    T Gaussian mechanisms are one with mu = sqrt(T) / sigma. The most revealing event that has
    probability kappa without the example has, with it, the probability

        B(kappa) = Phi(Phi^-1(kappa) + mu)

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

    _require_valid(kappa, noise_multiplier, steps)
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

    In the worst case, the example's clipped gradient always points in the same direction, a step
    shows one number, and the likelihood ratio of taking part with probability q is

        r(x) = prod_t (1 - q + q exp(x_t / sigma - 1 / (2 sigma^2)))

    The most revealing event of probability kappa is {r > c} for the c that gives it this
    probability.

    Args:
        kappa: Probability of the event without the example.
        noise_multiplier: sigma, the noise in units of the clipping norm.
        sample_rate: q, the probability that one example takes part in a step.
        steps: T, the number of shared updates.
        samples: Number of runs to draw.
        rng: For the draws.

    Deviations:
        The paper draws runs without the example and weighs them by r. Here runs with the example
        are drawn and weighed by 1 / r, which also covers events of tiny kappa.

    References:
        Hayes et al., 2023 (hayes2023bounding), the Monte-Carlo estimate of the bound
    """
    _require_valid(kappa, noise_multiplier, steps)
    require_within("(0, 1]", sample_rate=sample_rate)
    require_at_least(BLOCKS, samples=samples)
    if noise_multiplier == 0 or kappa == 1:
        return Estimated(1.0, 0.0)
    ratios = _draw_ratios(noise_multiplier, sample_rate, steps, samples, rng)
    parts = [_power(part, kappa) for part in ratios.tensor_split(BLOCKS)]
    error = float(torch.tensor(parts, dtype=torch.float64).std()) / math.sqrt(BLOCKS)
    return Estimated(_power(ratios, kappa), error)


def _require_valid(kappa: float, noise_multiplier: float = 0.0, steps: int = 1) -> None:
    require_within("(0, 1]", kappa=kappa)
    require_at_least(0, noise_multiplier=noise_multiplier)
    require_at_least(1, steps=steps)


def _draw_ratios(sigma: float, rate: float, steps: int, samples: int, rng: Rng) -> Tensor:
    """Draw runs with the example and return log r of each, `(samples,)`."""
    wide = torch.zeros((), dtype=torch.float64)
    total = torch.zeros(samples, dtype=torch.float64)
    for step in range(steps):
        took_part = rng.fork("takes part", step).uniform((samples,), like=wide) < rate
        seen = took_part / sigma + rng.fork("noise", step).normal((samples,), like=wide)
        # At q = 1, log(1 - q) is minus infinity but the sum is finite.
        shown = math.log(rate) + seen / sigma - 0.5 / sigma**2
        absent = torch.tensor(1 - rate, dtype=torch.float64).log()
        total = total + torch.logaddexp(absent, shown)
    return total


def _power(ratios: Tensor, kappa: float) -> float:
    """P(r > c) for the c with Q(r > c) = kappa; draws are from P, and Q is P weighed by 1 / r."""
    likeliest = ratios.sort(descending=True).values
    without = (-likeliest).exp().cumsum(0) / len(ratios)
    inside = int(torch.searchsorted(without, torch.tensor(kappa, dtype=torch.float64)))
    if inside == len(ratios):
        return 1.0
    before = float(without[inside - 1]) if inside else 0.0
    # Part of the next run belongs to the event, as in a randomised test.
    share = (kappa - before) / (float(without[inside]) - before)
    return (inside + share) / len(ratios)


def prior_success(candidates: Tensor, *, radius: float) -> float:
    """Upper bound on how often a guess without any update comes within `radius`.

        kappa(eta) = sup over z0 of P(rmse(Z, z0) <= eta),  Z uniform over the candidates

    All candidates in a ball of this radius lie within twice the radius of each of them, so balls of
    twice the radius around the candidates bound kappa.

    Args:
        candidates: The inputs that the adversary considers possible, `(N, ...)`.
        radius: eta, a root mean squared error per entry.

    Example:
        >>> prior_success(torch.eye(4), radius=0.1)
        0.25

    References:
        Balle et al., 2022 (balle2022reconstructing), the prior's kappa
    """
    points = candidates.flatten(1).double()
    if len(points) < 1 or not radius >= 0:
        raise InvalidValue(
            f"expected candidates and a radius >= 0, got {len(points)} and {radius!r}"
        )
    distances = torch.cdist(points, points) / math.sqrt(points.shape[1])
    return float((distances <= 2 * radius).double().mean(1).max())


def renyi_robustness(kappa: float, *, order: float, divergence: float) -> float:
    """Bound the success of any attack on a mechanism of bounded Rényi divergence.

        gamma = (kappa e^eps)^((alpha - 1) / alpha),  at most 1

    Args:
        kappa: Probability of success without any update.
        order: alpha, above 1.
        divergence: eps, the divergence of order alpha between taking part and not.

    Example:
        >>> renyi_robustness(0.25, order=2.0, divergence=0.0)
        0.5

    References:
        Balle et al., 2022 (balle2022reconstructing), reconstruction robustness from Rényi DP
    """
    _require_valid(kappa)
    if not order > 1 or not divergence >= 0:
        raise InvalidValue(
            f"expected an order > 1 and a divergence >= 0, got {order!r} and {divergence!r}"
        )
    return math.exp(min(0.0, (math.log(kappa) + divergence) * (order - 1) / order))


def gaussian_renyi_robustness(kappa: float, *, noise_multiplier: float, steps: int = 1) -> float:
    """Bound the success of any attack on T Gaussian mechanisms, at the best Rényi order.

    Their divergence of order alpha is alpha rho with rho = T / (2 sigma^2), and the best order
    gives, for rho below log(1 / kappa),

        gamma = exp(-(sqrt(log(1 / kappa)) - sqrt(rho))^2)

    Example:
        >>> kappa = 1e-3
        >>> gaussian_renyi_robustness(kappa, noise_multiplier=1.0) > gaussian_blow_up(
        ...     kappa, noise_multiplier=1.0
        ... )
        True

    References:
        Balle et al., 2022 (balle2022reconstructing), for concentrated DP; Hayes et al., 2023
        (hayes2023bounding), whose bound is never worse
    """
    _require_valid(kappa, noise_multiplier, steps)
    if noise_multiplier == 0:
        return 1.0
    rho, secret = steps / (2 * noise_multiplier**2), -math.log(kappa)
    return 1.0 if rho >= secret else math.exp(-((math.sqrt(secret) - math.sqrt(rho)) ** 2))


def expected_error(candidates: Tensor, *, noise_multiplier: float, steps: int = 1) -> float:
    """Lower bound on the mean RMSE of every attack, over inputs drawn from the candidates.

    An attack that comes within eta with probability at most gamma(eta) has an error of at least

        integral over eta of 1 - gamma(eta),  gamma(eta) = Phi(Phi^-1(kappa(eta)) + mu)

    Unlike Cramér-Rao bounds, it also holds for attacks with a prior, even with this very prior.

    The adversary considers the candidates `(N, ...)` equally likely.

    Example:
        >>> expected_error(torch.eye(4), noise_multiplier=0.0)
        0.0

    References:
        Hayes et al., 2023 (hayes2023bounding), integrated over the radius
    """

    def bound_success(kappa: float) -> float:
        return gaussian_blow_up(kappa, noise_multiplier=noise_multiplier, steps=steps)

    return integrate_failure(candidates, bound_success, power=1)


def integrate_failure(
    candidates: Tensor, bound_success: Callable[[float], float], *, power: int
) -> float:
    """Integrate 1 - gamma over eta^power: a lower bound on the mean of the RMSE to this power.

    Some ball of twice the radius eta around a candidate holds m of the N once it reaches the m-th
    nearest of the candidate with the nearest. kappa(eta) is at most m / N until m + 1 are reached.
    """
    points = candidates.flatten(1).double()
    distances = torch.cdist(points, points) / math.sqrt(points.shape[1])
    reached = (distances.sort(1).values.amin(0) / 2).tolist()
    total = 0.0
    for inside, (radius, following) in enumerate(pairwise(reached), start=1):
        gamma = bound_success(inside / len(points))
        total += (1 - gamma) * (following**power - radius**power)
    return total


ASSUMPTIONS = (
    UNBIASED,
    "the adversary may know all other examples of the batch",
    "one update is shared",
)


def renyi_rmse(*, noise_multiplier: float, width: float = 1.0) -> float:
    """Lower bound on the RMSE per entry of every unbiased attack on one step of DP-SGD.

    An entry with a range of `width` w can be replaced by a value at least w / 2 away. That moves
    the sum of clipped gradients by at most 2 C, so the divergence of order 2 is at most
    4 / sigma^2. Hammersley, Chapman and Robbins then give

        MSE >= (w / 2)^2 / (e^(4 / sigma^2) - 1)

    Example:
        >>> round(renyi_rmse(noise_multiplier=2.0), 4)
        0.3814
        >>> renyi_rmse(noise_multiplier=0.0)
        0.0

    References:
        Guo et al., 2022 (guo2022bounding), the bound from Rényi DP
    """
    if noise_multiplier == 0:
        return 0.0
    divergence = 4 / noise_multiplier**2
    # (e^D - 1)^(-1/2) without overflow.
    return width / 2 * math.exp(-divergence / 2) / math.sqrt(-math.expm1(-divergence))


@dataclass(frozen=True)
class RenyiError(LowerBound):
    """No unbiased attack on DP-SGD errs by less: w / (2 sqrt(e^(4 / sigma^2) - 1)) per entry.

    It is the same for every example and whatever the inputs are.

    References:
        Guo et al., 2022 (guo2022bounding), the bound from Rényi DP
    """

    name: ClassVar[str] = "renyi_error"

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Bound the error by the noise multiplier of the client's DP-SGD."""
        sigma = read_noise_multiplier(client)
        low, high = task.domain.bounds
        error = renyi_rmse(noise_multiplier=sigma, width=high - low)
        return bound_below([error] * len(batch), *ASSUMPTIONS)


def read_noise_multiplier(client: Client) -> float:
    """Read sigma off one step of DP-SGD.

    Raises:
        NotApplicable: The client does anything else, or adds no noise.
    """
    single_step = isinstance(client.local, Gradient) and len(client.chain.links) == 3
    sigma = noise_multiplier(client.defense) if single_step else None
    if sigma is None:
        raise NotApplicable(
            "it holds for DP-SGD alone: expected Gradient() behind chain(ClipEach(C), "
            "Mean(over=B), AddGaussian(std)), as dp_sgd(...) makes it"
        )
    if sigma == 0:
        raise NotApplicable("no noise is added, so nothing is promised")
    return sigma


def required_noise(*, sensitivity: float, epsilon: float, delta: float) -> float:
    """Standard deviation of the noise that makes an update (eps, delta)-DP, by the moments bound.

    The proof of the proposition gives, with Delta the squared sensitivity,

        delta = exp(-Delta / (2 sigma^2) (sigma^2 eps / Delta - 1/2)^2),

    whose solution is sigma^2 = Delta (eps + 2 L + 2 sqrt(L (L + eps))) / (2 eps^2) with
    L = log(1 / delta). For a two-layer network of m nodes with random weights, Delta is of order m.

    Args:
        sensitivity: The most that replacing one example moves the update (2 C / B if each of B
            examples is clipped to C).
        epsilon: The promised epsilon.
        delta: Probability with which the promise may fail.

    Example:
        >>> round(required_noise(sensitivity=1.0, epsilon=1.0, delta=1e-5), 2)
        4.9

    Deviations:
        The proposition says sigma^2 = Omega(m log(1 / delta) / eps). Its own expression gives this
        for eps of the order of log(1 / delta), but 1 / eps^2 for small eps.

    References:
        Liu et al., 2024, Propositions 2.1 and A.1 (liu2024systematic)
    """
    require_at_least(0, sensitivity=sensitivity)
    if not epsilon > 0 or not 0 < delta < 1:
        raise InvalidValue(
            f"expected epsilon > 0 and delta in (0, 1), got {epsilon!r} and {delta!r}"
        )
    log = math.log(1 / delta)
    share = (epsilon + 2 * log + 2 * math.sqrt(log * (log + epsilon))) / (2 * epsilon**2)
    return sensitivity * math.sqrt(share)
