"""The links of DP-SGD: clipping, the mean that follows it, and additive noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Rng, Update
from seepage.core.errors import InvalidValue
from seepage.core.update import Granularity
from seepage.defenses.chain import Link, OnAggregate


@dataclass(frozen=True, repr=False)
class Clip(OnAggregate):
    """Scale the combined update down to at most `max_norm`: g min(1, C / ||g||).

    This is the clipping that 001 studies. It bounds no single person's influence; see `ClipEach`.

    References:
        Liu et al., 2024, Sec. 3 (liu2024systematic)
    """

    max_norm: float

    def __post_init__(self) -> None:
        """Check the norm."""
        _check_norm(self.max_norm)

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Clip; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Clip, differentiably."""
        scale = _scale(update.norm(), self.max_norm)
        return update.map(lambda t: t * scale)


@dataclass(frozen=True, repr=False)
class ClipEach(Link):
    """Scale each example's update down to at most `max_norm`, before they are combined.

    The first link of DP-SGD: `chain(ClipEach(C), Mean(), AddGaussian(sigma * C / B))`.

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """

    consumes: ClassVar[Granularity] = "per_example"
    produces: ClassVar[Granularity] = "per_example"

    max_norm: float

    def __post_init__(self) -> None:
        """Check the norm."""
        _check_norm(self.max_norm)

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Clip; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Clip every example, differentiably."""
        scale = _scale(update.norm(), self.max_norm)
        return update.map(lambda t: torch.einsum("b,b...->b...", scale, t))


@dataclass(frozen=True, repr=False)
class Mean(Link):
    """Combine per-example updates by their mean.

    The second link of DP-SGD, between clipping and noise.

    Args:
        over: Divide the sum by this number instead of by how many examples there are.

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """

    consumes: ClassVar[Granularity] = "per_example"
    produces: ClassVar[Granularity] = "aggregate"

    over: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the number."""
        if self.over is not None and self.over < 1:
            raise InvalidValue(f"expected a mean over >= 1 examples, got {self.over!r}")

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Average; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Average over the examples."""
        mean = update.map(lambda t: t.mean(0) if self.over is None else t.sum(0) / self.over)
        return replace(mean, granularity="aggregate")


def _check_norm(max_norm: float) -> None:
    if not max_norm > 0:
        raise InvalidValue(f"expected max_norm > 0, got {max_norm!r}")


def _scale(norm: Tensor, max_norm: float) -> Tensor:
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

    std: float

    def __post_init__(self) -> None:
        """Check the deviation."""
        _check_scale("std", self.std)

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Add noise drawn from `rng`."""
        flat = update.flat()
        return update.unflatten(flat + self.std * rng.normal(flat.shape, like=flat))

    def expected(self, update: Update) -> Update:
        """The update itself: the noise has mean zero."""
        return update


@dataclass(frozen=True, repr=False)
class AddLaplace(OnAggregate):
    """Add independent Laplace(0, scale) to every entry; its deviation is sqrt(2) scale.

    References:
        Zhu et al., 2019, Sec. 5 (zhu2019deep)
    """

    scale: float

    def __post_init__(self) -> None:
        """Check the scale."""
        _check_scale("scale", self.scale)

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Add noise drawn from `rng` by inverting the distribution function."""
        flat = update.flat()
        centred = rng.uniform(flat.shape, like=flat.double()) - 0.5
        tail = (1 - 2 * centred.abs()).clamp_min(torch.finfo(torch.float64).tiny)
        noise = -self.scale * centred.sign() * tail.log()
        return update.unflatten(flat + noise.to(flat.dtype))

    def expected(self, update: Update) -> Update:
        """The update itself: the noise has mean zero."""
        return update


def _check_scale(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InvalidValue(f"expected {name} >= 0, got {value!r}")
