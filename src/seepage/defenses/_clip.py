"""DP-SGD and its parts: clipping, the mean, additive noise, and the privacy it promises."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.core import Defense, Protection, Rng, Update
from seepage.core._chain import Chain, OnAggregate, OnUpdate, chain
from seepage.core._update import Granularity
from seepage.core.errors import (
    InvalidValue,
    UnknownName,
    import_extra,
    require_at_least,
    require_within,
)


@dataclass(frozen=True, repr=False)
class Clip(OnAggregate):
    """Scale the combined update down to at most `max_norm`: g min(1, C / ||g||).

    This is the clipping that 001 studies. It does not bound the influence of a single example; see
    `ClipEach`.

    References:
        Liu et al., 2024, Sec. 3 (liu2024systematic)
    """

    label = "Clip C={max_norm:g}"
    only_scales = True
    keeps_gradient: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
    max_norm: float

    def __post_init__(self) -> None:
        _require_norm(self.max_norm)

    def expected(self, update: Update) -> Update:
        """Clip, differentiably."""
        scale = _clipping_factor(update.norm(), self.max_norm)
        return update.map(lambda t: t * scale)


@dataclass(frozen=True, repr=False)
class ClipEach(OnUpdate):
    """Scale each example's update down to at most `max_norm`, before they are combined.

    The first link of DP-SGD: `chain(ClipEach(C), Mean(), AddGaussian(sigma * C / B))`.

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """

    label = "Clip each C={max_norm:g}"
    keeps_gradient: ClassVar[bool] = True
    consumes: ClassVar[Granularity] = "per_example"
    produces: ClassVar[Granularity] = "per_example"

    max_norm: float

    def __post_init__(self) -> None:
        _require_norm(self.max_norm)

    def expected(self, update: Update) -> Update:
        """Clip every example, differentiably."""
        scale = _clipping_factor(update.norm(), self.max_norm)
        return update.map(lambda t: torch.einsum("b,b...->b...", scale, t))


@dataclass(frozen=True, repr=False)
class Mean(OnUpdate):
    """Combine per-example updates by their mean: the second link of DP-SGD.

    Args:
        over: Divide the sum by this number instead of the number of examples.

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """

    label = "Mean"
    keeps_gradient: ClassVar[bool] = True
    consumes: ClassVar[Granularity] = "per_example"
    produces: ClassVar[Granularity] = "aggregate"

    over: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.over is not None and self.over < 1:
            raise InvalidValue(f"expected a mean over >= 1 examples, got {self.over!r}")

    def expected(self, update: Update) -> Update:
        """Average over the examples."""
        mean = update.map(lambda t: t.mean(0) if self.over is None else t.sum(0) / self.over)
        return replace(mean, granularity="aggregate")


def _require_norm(max_norm: float) -> None:
    if not max_norm > 0:
        raise InvalidValue(f"expected max_norm > 0, got {max_norm!r}")


def _clipping_factor(norm: Tensor, max_norm: float) -> Tensor:
    """min(1, C / ||g||), written so that neither it nor its derivative overflows at zero."""
    if max_norm == math.inf:
        return torch.ones_like(norm)
    return max_norm / norm.clamp_min(max_norm)


@dataclass(frozen=True, repr=False)
class AddGaussian(OnAggregate):
    """Add independent N(0, std^2) to every entry of the update.

    Example:
        >>> AddGaussian(-1.0)
        Traceback (most recent call last):
        ...
        seepage.core.errors.InvalidValue: expected std >= 0, got -1.0

    References:
        Abadi et al., 2016 (abadi2016deep); Liu et al., 2024 (liu2024systematic)
    """

    label = "Gaussian noise \N{GREEK SMALL LETTER SIGMA}={std:g}"
    keeps_gradient: ClassVar[bool] = True
    std: float

    def __post_init__(self) -> None:
        require_at_least(0, std=self.std)

    @property
    def noise(self) -> float:
        """The deviation of the noise."""
        return self.std

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Add noise drawn from `rng`."""
        flat = update.flat()
        return update.unflatten(flat + self.std * rng.normal(flat.shape, like=flat))

    def expected(self, update: Update) -> Update:
        """Return the update itself: the noise has mean zero."""
        return update


@dataclass(frozen=True, repr=False)
class AddLaplace(OnAggregate):
    """Add independent Laplace(0, scale) to every entry; its standard deviation is sqrt(2) scale.

    References:
        Zhu et al., 2019, Sec. 5 (zhu2019deep)
    """

    label = "Laplace noise b={scale:g}"
    keeps_gradient: ClassVar[bool] = True
    scale: float

    def __post_init__(self) -> None:
        require_at_least(0, scale=self.scale)

    @property
    def noise(self) -> float:
        """The deviation of the noise."""
        return math.sqrt(2) * self.scale

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Add noise drawn from `rng` by inverting the distribution function."""
        flat = update.flat()
        centred = rng.uniform(flat.shape, like=flat.double()) - 0.5
        tail = (1 - 2 * centred.abs()).clamp_min(torch.finfo(torch.float64).tiny)
        noise = -self.scale * centred.sign() * tail.log()
        return update.unflatten(flat + noise.to(flat.dtype))

    def expected(self, update: Update) -> Update:
        """Return the update itself: the noise has mean zero."""
        return update


def dp_sgd(*, max_norm: float, noise_multiplier: float, batch_size: int) -> Defense:
    """Clip every example's gradient, average, and add noise in proportion to the clipping norm.

        (1/B) (sum_i g_i min(1, C / ||g_i||) + N(0, sigma^2 C^2 I))

    Args:
        max_norm: C, the most one example can move the sum.
        noise_multiplier: sigma, the standard deviation of the noise on the sum in units of C.
        batch_size: B, the expected number of examples, fixed in advance. Dividing by the actual
            number would let one example more or less change what the others contribute.

    Example:
        >>> dp_sgd(max_norm=1.0, noise_multiplier=2.0, batch_size=4)
        chain(ClipEach(1.0), Mean(over=4), AddGaussian(0.5))

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """
    require_at_least(0, noise_multiplier=noise_multiplier)
    require_at_least(1, batch_size=batch_size)
    std = noise_multiplier * max_norm / batch_size
    return chain(ClipEach(max_norm), Mean(over=batch_size), AddGaussian(std))


def noise_multiplier(defense: Protection) -> float | None:
    """The noise of DP-SGD in units of the clipping norm, or None if the defense is not DP-SGD.

    The chain must begin with per-example clipping, a mean over a fixed number, and Gaussian noise.
    Links after the noise cannot weaken the promise. A link before the clipping that mixes or copies
    examples makes the chain something other than DP-SGD.

    Example:
        >>> noise_multiplier(dp_sgd(max_norm=2.0, noise_multiplier=1.5, batch_size=8))
        1.5
        >>> noise_multiplier(Clip(1.0)) is None
        True
    """
    match Chain.of(defense).links[:3]:
        case (ClipEach(max_norm=norm), Mean(over=int(size)), AddGaussian(std=std)):
            return std * size / norm
    return None


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
        sample_rate: Probability that one example takes part in a step.
        steps: Number of shared updates.
        delta: Probability with which the promise may fail.
        accountant: "rdp" composes Rényi divergences; "prv" composes privacy-loss distributions,
            which is tighter.

    Raises:
        MissingExtra: Opacus is not installed; `gaussian_epsilon` needs no extra.

    References:
        Abadi et al., 2016 (abadi2016deep); Mironov et al., 2019 (mironov2019sampled); Gopi et al.,
        2021 (gopi2021numerical)
    """
    _require_account(noise_multiplier, steps, delta)
    require_within("(0, 1]", sample_rate=sample_rate)
    if accountant not in ("rdp", "prv"):
        raise UnknownName("accountant", accountant, ("rdp", "prv"))
    otherwise = ", or use gaussian_epsilon if every example takes part in every step"
    import_extra("opacus", "dp", reason="epsilon needs Opacus", otherwise=otherwise)
    accountants = import_module("opacus.accountants")
    made = {"rdp": accountants.RDPAccountant, "prv": accountants.PRVAccountant}[accountant]()
    for _ in range(steps):
        made.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    return float(made.get_epsilon(delta))


def gaussian_epsilon(*, noise_multiplier: float, steps: int = 1, delta: float) -> float:
    """The exact epsilon of DP-SGD in which every example takes part in every step.

    T Gaussian mechanisms are one with mu = sqrt(T) / sigma, whose smallest delta is

        delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)

    Args:
        noise_multiplier: sigma, the noise in units of the clipping norm.
        steps: T, the number of shared updates.
        delta: Probability with which the promise may fail.

    Example:
        >>> round(gaussian_epsilon(noise_multiplier=1.0, delta=1e-5), 3)
        4.377

    References:
        Balle and Wang, 2018, Theorem 8 (balle2018improving)
    """
    from scipy.optimize import brentq

    _require_account(noise_multiplier, steps, delta)
    if noise_multiplier == 0:
        return math.inf
    mu = math.sqrt(steps) / noise_multiplier
    if _gaussian_delta(0.0, mu) <= delta:
        return 0.0
    # The classical bound is always above the exact epsilon.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(lambda e: _gaussian_delta(e, mu) - delta, 0.0, high, xtol=1e-12))


def _gaussian_delta(eps: float, mu: float) -> float:
    """delta(eps), with the product in logarithms, since e^eps alone may overflow."""
    from scipy.special import log_ndtr, ndtr

    second = math.exp(eps + float(log_ndtr(-mu / 2 - eps / mu)))
    return float(ndtr(mu / 2 - eps / mu)) - second


def _require_account(noise_multiplier: float, steps: int, delta: float) -> None:
    require_at_least(0, noise_multiplier=noise_multiplier)
    require_at_least(1, steps=steps)
    require_within("(0, 1)", delta=delta)
