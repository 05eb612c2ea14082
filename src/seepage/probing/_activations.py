"""Element-wise activations, recognised by what they compute."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional


class Activation(ABC):
    """An element-wise map alpha and its inverse, as far as there is one.

    `range` holds the bounds of its values.
    """

    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """alpha(z)."""

    @abstractmethod
    def inverse(self, x: Tensor) -> Tensor:
        """The z with alpha(z) = x, or the nearest z if alpha never takes the value x."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """alpha'(z)."""

    def known(self, x: Tensor) -> Tensor:
        """Where `inverse` is the only z that alpha maps to x; by default everywhere."""
        return torch.ones_like(x, dtype=torch.bool)


@dataclass(frozen=True)
class Identity(Activation):
    """alpha(z) = z."""

    def __call__(self, z: Tensor) -> Tensor:
        """Return z."""
        return z

    def inverse(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def derivative(self, z: Tensor) -> Tensor:
        """Return one."""
        return torch.ones_like(z)


@dataclass(frozen=True)
class Tanh(Activation):
    """alpha(z) = tanh z.

    Example:
        >>> round(Tanh().inverse(torch.tensor(0.5)).item(), 4)
        0.5493
    """

    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __call__(self, z: Tensor) -> Tensor:
        """Return tanh z."""
        return torch.tanh(z)

    def inverse(self, x: Tensor) -> Tensor:
        """Return artanh x."""
        return torch.atanh(_clamp_inside(x, -1.0, 1.0))

    def derivative(self, z: Tensor) -> Tensor:
        """Return 1 - tanh^2 z."""
        return 1 - torch.tanh(z).square()


@dataclass(frozen=True)
class Sigmoid(Activation):
    """alpha(z) = 1 / (1 + exp(-z))."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __call__(self, z: Tensor) -> Tensor:
        """Return sigma(z)."""
        return torch.sigmoid(z)

    def inverse(self, x: Tensor) -> Tensor:
        """Return log(x / (1 - x))."""
        return torch.logit(_clamp_inside(x, 0.0, 1.0))

    def derivative(self, z: Tensor) -> Tensor:
        """Return sigma(z) (1 - sigma(z))."""
        return torch.sigmoid(z) * torch.sigmoid(-z)


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """alpha(z) = z where z > 0, else slope * z, with a slope that is not zero.

    Example:
        >>> LeakyReLU(0.1).inverse(torch.tensor([2.0, -0.2])).tolist()
        [2.0, -2.0]
    """

    slope: float

    def __call__(self, z: Tensor) -> Tensor:
        """Return z or slope * z."""
        return torch.where(z > 0, z, self.slope * z)

    def inverse(self, x: Tensor) -> Tensor:
        """Return x or x / slope."""
        return torch.where(x > 0, x, x / self.slope)

    def derivative(self, z: Tensor) -> Tensor:
        """Return one or the slope."""
        return torch.where(z > 0, torch.ones_like(z), self.slope)


@dataclass(frozen=True)
class ReLU(Activation):
    """alpha(z) = max(z, 0): a zero says only that z was not positive.

    Example:
        >>> ReLU().known(torch.tensor([2.0, 0.0])).tolist()
        [True, False]
    """

    range: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def __call__(self, z: Tensor) -> Tensor:
        """Return z or zero."""
        return z.clamp(min=0)

    def inverse(self, x: Tensor) -> Tensor:
        """Return x where it is positive, else zero, the nearest guess."""
        return x.clamp(min=0)

    def known(self, x: Tensor) -> Tensor:
        """Where x is positive beyond rounding."""
        return x > _ROUNDING * x.abs().max()

    def derivative(self, z: Tensor) -> Tensor:
        """Return one or zero."""
        return (z > 0).to(z)


_Alpha = TypeVar("_Alpha", bound=Callable[[Tensor], Tensor])

_FEW = 4096
# Features are computed from an update in single precision.
_ROUNDING = 1e-6


def _clamp_inside(x: Tensor, low: float, high: float) -> Tensor:
    return x.clamp(low + _ROUNDING, high - _ROUNDING)


def recognise_activation(z: Tensor, x: Tensor) -> Activation | None:
    """Find the invertible activation with alpha(z) = x to double precision; None if none fits.

    Example:
        >>> z = torch.tensor([[-1.0, 2.0]], dtype=torch.float64)
        >>> recognise_activation(z, torch.nn.functional.leaky_relu(z, 0.2))
        LeakyReLU(slope=0.2)
    """
    z, x = z.flatten(1), x.flatten(1)
    if z.shape != x.shape:
        return None
    slope = _lowest_slope(z, x)
    options: list[Activation] = [Identity(), Tanh(), Sigmoid(), ReLU()]
    return _first_fitting(options + ([LeakyReLU(slope)] if slope > 0 else []), z, x)


def _lowest_slope(z: Tensor, x: Tensor) -> float:
    """The ratio x / z at the lowest z."""
    lowest = z.argmin()
    return float(x.flatten()[lowest] / z.flatten()[lowest])


def _first_fitting(options: Iterable[_Alpha], z: Tensor, x: Tensor) -> _Alpha | None:
    def fits(alpha: _Alpha, z: Tensor, x: Tensor) -> bool:
        return torch.allclose(alpha(z), x, rtol=1e-9, atol=1e-12)

    # A few entries rule most out.
    few, same = z.flatten()[:_FEW], x.flatten()[:_FEW]
    return next((a for a in options if fits(a, few, same) and fits(a, z, x)), None)


_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "relu": functional.relu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "gelu": functional.gelu,
        "softplus": functional.softplus,
        "silu": functional.silu,
        "elu": functional.elu,
        "identity": lambda z: z,
    }
)


@dataclass(frozen=True)
class HeadActivation:
    """An element-wise function sigma and its derivative.

    Example:
        >>> HeadActivation("leaky_relu", 0.5)(torch.tensor([-2.0, 3.0])).tolist()
        [-1.0, 3.0]
    """

    name: str
    slope: float = 0.0

    def __call__(self, z: Tensor) -> Tensor:
        """sigma(z)."""
        if self.name == "leaky_relu":
            return functional.leaky_relu(z, self.slope)
        return _FUNCTIONS[self.name](z)

    def derivative(self, z: Tensor) -> Tensor:
        """sigma'(z)."""
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self(leaf).sum(), leaf)
        return slope

    @property
    def rectifies(self) -> bool:
        """Whether it is max(z, 0)."""
        return self.name == "relu"

    @property
    def homogeneous(self) -> bool:
        """Whether sigma(s z) = s sigma(z) for s > 0, so that it does not show lengths."""
        return self.name in ("relu", "leaky_relu", "identity")


def recognise_head_activation(z: Tensor, x: Tensor) -> HeadActivation | None:
    """Find the activation with sigma(z) = x to double precision; None if none fits.

    Example:
        >>> z = torch.linspace(-3, 3, 9, dtype=torch.float64)
        >>> recognise_head_activation(z, functional.silu(z))
        HeadActivation(name='silu', slope=0.0)
    """
    if z.shape != x.shape:
        return None
    leaky = HeadActivation("leaky_relu", _lowest_slope(z, x))
    return _first_fitting([*(HeadActivation(name) for name in _FUNCTIONS), leaky], z, x)
