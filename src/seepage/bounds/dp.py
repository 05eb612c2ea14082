"""Reconstruction robustness: how often any attack comes close, for a prior over candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.clients.client import Client
from seepage.clients.gradient import Gradient
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import InvalidValue
from seepage.core.rng import require_key
from seepage.defenses.clip import AddGaussian, ClipEach, Mean

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


def prior_success(candidates: Tensor, *, radius: float) -> float:
    """How often a guess without any update comes within `radius`, at most.

        kappa(eta) = sup over z0 of P(rmse(Z, z0) <= eta),  Z uniform over the candidates

    All that a ball of this radius holds lies within twice the radius of any one of them, so
    balls of twice the radius around the candidates bound it.

    Args:
        candidates: What the adversary holds possible, `(N, ...)`.
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
    """The success of any attack on a mechanism of bounded Rényi divergence.

        gamma = (kappa e^eps)^((alpha - 1) / alpha),  at most 1

    Args:
        kappa: Success without any update.
        order: alpha, above 1.
        divergence: eps, of order alpha between taking part and not.

    Example:
        >>> renyi_robustness(0.25, order=2.0, divergence=0.0)
        0.5

    References:
        Balle et al., 2022 (balle2022reconstructing), reconstruction robustness from Rényi DP
    """
    check(kappa, 0.0, 1)
    if not order > 1 or not divergence >= 0:
        raise InvalidValue(
            f"expected an order > 1 and a divergence >= 0, got {order!r} and {divergence!r}"
        )
    return math.exp(min(0.0, (math.log(kappa) + divergence) * (order - 1) / order))


def gaussian_renyi_robustness(kappa: float, *, noise_multiplier: float, steps: int = 1) -> float:
    """The same for T Gaussian mechanisms, at the best order.

    Their divergence of order alpha is alpha rho with rho = T / (2 sigma^2), and the best order
    gives, for rho below log(1 / kappa),

        gamma = exp(-(sqrt(log(1 / kappa)) - sqrt(rho))^2)

    Args:
        kappa: Success without any update.
        noise_multiplier: sigma, the noise in units of the clipping norm.
        steps: T, how many updates are shared.

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
    check(kappa, noise_multiplier, steps)
    if noise_multiplier == 0:
        return 1.0
    rho, secret = steps / (2 * noise_multiplier**2), -math.log(kappa)
    return 1.0 if rho >= secret else math.exp(-((math.sqrt(secret) - math.sqrt(rho)) ** 2))


def expected_error(candidates: Tensor, *, noise_multiplier: float, steps: int = 1) -> float:
    """The RMSE that every attack has on average over people drawn from the candidates, at least.

    An attack that comes within eta with probability gamma(eta) at most errs by at least

        sup over eta of eta (1 - gamma(eta)),  gamma(eta) = Phi(Phi^-1(kappa(eta)) + mu)

    Unlike Cramér-Rao bounds it holds for attacks with priors too, even with this very prior.

    Args:
        candidates: What the adversary holds equally likely, `(N, ...)`.
        noise_multiplier: sigma, the noise in units of the clipping norm.
        steps: T, how many updates are shared.

    Example:
        >>> expected_error(torch.eye(4), noise_multiplier=0.0)
        0.0

    References:
        Hayes et al., 2023 (hayes2023bounding), through Markov's inequality
    """
    points = candidates.flatten(1).double()
    distances = torch.pdist(points) / math.sqrt(points.shape[1])
    # kappa grows where twice the radius reaches another candidate, so it is best just before.
    best = 0.0
    for radius in sorted({distance / 2 * (1 - 1e-9) for distance in distances.tolist()}):
        kappa = prior_success(candidates, radius=radius)
        gamma = gaussian_blow_up(kappa, noise_multiplier=noise_multiplier, steps=steps)
        best = max(best, radius * (1 - gamma))
    return best


@dataclass(frozen=True)
class _Mechanism:
    """One shared update of DP-SGD.

    Args:
        max_norm: C, to which each person's gradient is clipped.
        over: What the sum is divided by.
        std: Deviation of the noise on the mean.
    """

    max_norm: float
    over: int
    std: float

    @property
    def noise_multiplier(self) -> float:
        """sigma, the noise on the sum in units of the clipping norm."""
        return self.std * self.over / self.max_norm


def mechanism(client: Client) -> _Mechanism | None:
    """The client as DP-SGD: each clipped, a mean over a fixed number, noise; None for any other.

    Example:
        >>> from seepage.defenses import dp_sgd
        >>> dp = dp_sgd(max_norm=2.0, noise_multiplier=1.5, batch_size=4)
        >>> mechanism(Client(Gradient(), dp)).noise_multiplier
        1.5
    """
    match client.chain.links:
        case (ClipEach(max_norm=norm), Mean(over=int(over)), AddGaussian(std=std)) if isinstance(
            client.local, Gradient
        ):
            return _Mechanism(norm, over, std)
    return None


ASSUMPTIONS = (
    "the attack is unbiased: over the noise it is right on average, whoever took part",
    "the adversary may know everybody else in the batch",
    "one update is shared",
)


def renyi_rmse(*, noise_multiplier: float, width: float = 1.0) -> float:
    """The RMSE per entry of every unbiased attack on one step of DP-SGD, at least.

    An entry can be exchanged for one at least half the width w away. That moves the sum of
    clipped gradients by at most 2 C, so the divergence of order 2 is at most 4 / sigma^2, and by
    Hammersley, Chapman and Robbins

        MSE >= (w / 2)^2 / (e^(4 / sigma^2) - 1)

    Args:
        noise_multiplier: sigma, the noise in units of the clipping norm.
        width: w, of the range of an entry.

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
class RenyiError:
    """No unbiased attack on DP-SGD errs by less: w / (2 sqrt(e^(4 / sigma^2) - 1)) per entry.

    References:
        Guo et al., 2022 (guo2022bounding), the bound from Rényi DP
    """

    name: ClassVar[str] = "renyi_error"

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """The same number for everybody: it holds whatever the inputs are."""
        require_key(rng)
        found = mechanism(client)
        low, high = task.domain.bounds
        remark = ""
        if found is None:
            remark = (
                "it is of DP-SGD alone: expected Gradient() behind chain(ClipEach(C), "
                "Mean(over=B), AddGaussian(std)), as dp_sgd(...) makes it"
            )
        elif found.std == 0:
            remark = "no noise is added, so that nothing is promised"
        sigma = 0.0 if found is None else found.noise_multiplier
        error = renyi_rmse(noise_multiplier=sigma, width=high - low)
        return BoundValue(
            torch.full((len(batch),), error, dtype=torch.float64, device="cpu"),
            side="lower",
            metric="rmse",
            assumptions=ASSUMPTIONS,
            remark=remark,
        )


def required_noise(*, sensitivity: float, epsilon: float, delta: float) -> float:
    """The deviation of noise for which an update is (eps, delta)-DP, by the moments bound.

    The proof of the proposition gives, with Delta the squared sensitivity,

        delta = exp(-Delta / (2 sigma^2) (sigma^2 eps / Delta - 1/2)^2),

    of which this is the solution: sigma^2 = Delta (eps + 2 L + 2 sqrt(L (L + eps))) / (2 eps^2)
    with L = log(1 / delta). For a two-layer network of m nodes with random weights Delta is of the
    order of m.

    Args:
        sensitivity: The most that exchanging one person moves the update (2 C / B where each of B
            examples is clipped to C).
        epsilon: What is promised.
        delta: The probability with which the promise may fail.

    Example:
        >>> round(required_noise(sensitivity=1.0, epsilon=1.0, delta=1e-5), 2)
        4.9

    Deviations:
        The proposition says sigma^2 = Omega(m log(1 / delta) / eps), which its own expression
        gives for eps of the order of log(1 / delta); for small eps it asks for 1 / eps^2.

    References:
        Liu et al., 2024, Propositions 2.1 and A.1 (liu2024systematic)
    """
    if not (sensitivity >= 0 and math.isfinite(sensitivity)):
        raise InvalidValue(f"expected a sensitivity >= 0, got {sensitivity!r}")
    if not epsilon > 0 or not 0 < delta < 1:
        raise InvalidValue(
            f"expected epsilon > 0 and delta in (0, 1), got {epsilon!r} and {delta!r}"
        )
    log = math.log(1 / delta)
    share = (epsilon + 2 * log + 2 * math.sqrt(log * (log + epsilon))) / (2 * epsilon**2)
    return sensitivity * math.sqrt(share)
