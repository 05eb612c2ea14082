"""Additive noise, Gaussian and Laplace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from seepage.core import Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.chain import OnAggregate


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
