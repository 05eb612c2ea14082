"""Reconstruction robustness: how often any attack comes close, for a prior over candidates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.bounds.dp.blow_up import check, gaussian_blow_up
from seepage.core.errors import InvalidValue


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
