"""Element-wise activations, recognised by what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Activation(Protocol):
    """An element-wise map alpha, undone as far as it can be."""

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of what it gives."""

    def __call__(self, z: Tensor) -> Tensor:
        """alpha(z)."""

    def inverse(self, x: Tensor) -> Tensor:
        """The z with alpha(z) = x; for x that alpha never gives, the z that comes nearest."""

    def known(self, x: Tensor) -> Tensor:
        """Where `inverse` is the only z that alpha maps to x."""

    def derivative(self, z: Tensor) -> Tensor:
        """alpha'(z)."""


@dataclass(frozen=True)
class Identity:
    """alpha(z) = z."""

    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    def __call__(self, z: Tensor) -> Tensor:
        """Return z."""
        return z

    def inverse(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def known(self, x: Tensor) -> Tensor:
        """Everywhere."""
        return torch.ones_like(x, dtype=torch.bool)

    def derivative(self, z: Tensor) -> Tensor:
        """One."""
        return torch.ones_like(z)


@dataclass(frozen=True)
class Tanh:
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
        return torch.atanh(_inside(x, -1.0, 1.0))

    def known(self, x: Tensor) -> Tensor:
        """Everywhere."""
        return torch.ones_like(x, dtype=torch.bool)

    def derivative(self, z: Tensor) -> Tensor:
        """1 - tanh^2 z."""
        return 1 - torch.tanh(z).square()


@dataclass(frozen=True)
class Sigmoid:
    """alpha(z) = 1 / (1 + exp(-z))."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __call__(self, z: Tensor) -> Tensor:
        """Return sigma(z)."""
        return torch.sigmoid(z)

    def inverse(self, x: Tensor) -> Tensor:
        """Return log(x / (1 - x))."""
        return torch.logit(_inside(x, 0.0, 1.0))

    def known(self, x: Tensor) -> Tensor:
        """Everywhere."""
        return torch.ones_like(x, dtype=torch.bool)

    def derivative(self, z: Tensor) -> Tensor:
        """sigma(z) (1 - sigma(z))."""
        return torch.sigmoid(z) * torch.sigmoid(-z)


@dataclass(frozen=True)
class LeakyReLU:
    """alpha(z) = z where z > 0, else slope * z.

    Args:
        slope: Not zero; `ReLU` is another matter, for it forgets.

    Example:
        >>> LeakyReLU(0.1).inverse(torch.tensor([2.0, -0.2])).tolist()
        [2.0, -2.0]
    """

    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    slope: float

    def __call__(self, z: Tensor) -> Tensor:
        """Return z or slope * z."""
        return torch.where(z > 0, z, self.slope * z)

    def inverse(self, x: Tensor) -> Tensor:
        """Return x or x / slope."""
        return torch.where(x > 0, x, x / self.slope)

    def known(self, x: Tensor) -> Tensor:
        """Everywhere."""
        return torch.ones_like(x, dtype=torch.bool)

    def derivative(self, z: Tensor) -> Tensor:
        """One or the slope."""
        return torch.where(z > 0, torch.ones_like(z), self.slope)


@dataclass(frozen=True)
class ReLU:
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
        """Return x where it is positive, and zero, the nearest guess, where it is not."""
        return x.clamp(min=0)

    def known(self, x: Tensor) -> Tensor:
        """Where x is positive beyond rounding."""
        return x > _ROUNDING * x.abs().max()

    def derivative(self, z: Tensor) -> Tensor:
        """One or zero."""
        return (z > 0).to(z)


# Features are computed from an update in single precision.
_ROUNDING = 1e-6


def _inside(x: Tensor, low: float, high: float) -> Tensor:
    return x.clamp(low + _ROUNDING, high - _ROUNDING)


def recognise_activation(z: Tensor, x: Tensor) -> Activation | None:
    """The activation with alpha(z) = x to double precision, if it is one of these.

    Example:
        >>> z = torch.tensor([[-1.0, 2.0]], dtype=torch.float64)
        >>> recognise_activation(z, torch.nn.functional.leaky_relu(z, 0.2))
        LeakyReLU(slope=0.2)
    """
    z, x = z.flatten(1), x.flatten(1)
    if z.shape != x.shape:
        return None
    lowest = z.argmin()
    slope = float(x.flatten()[lowest] / z.flatten()[lowest])
    options: list[Activation] = [Identity(), Tanh(), Sigmoid(), ReLU()]
    options += [LeakyReLU(slope)] if slope > 0 else []
    fitting = (alpha for alpha in options if torch.allclose(alpha(z), x, rtol=1e-9, atol=1e-12))
    return next(fitting, None)


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
    """An element-wise function sigma and its slope.

    Args:
        name: Which one; "leaky_relu" has a slope of its own.
        slope: Of "leaky_relu" below zero.

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
        """Whether it is zero for all negative numbers and leaves the others as they are."""
        return self.name == "relu"

    @property
    def homogeneous(self) -> bool:
        """Whether sigma(s z) = s sigma(z) for s > 0, so that lengths do not show in it."""
        return self.name in ("relu", "leaky_relu", "identity")


def recognise_head_activation(z: Tensor, x: Tensor) -> HeadActivation | None:
    """The activation with sigma(z) = x to double precision, if it is one of these.

    Example:
        >>> z = torch.linspace(-3, 3, 9, dtype=torch.float64)
        >>> recognise_head_activation(z, functional.silu(z))
        HeadActivation(name='silu', slope=0.0)
    """
    if z.shape != x.shape:
        return None
    lowest = z.argmin()
    options = [HeadActivation(name) for name in _FUNCTIONS]
    options.append(HeadActivation("leaky_relu", float(x.flatten()[lowest] / z.flatten()[lowest])))
    fitting = (a for a in options if torch.allclose(a(z), x, rtol=1e-9, atol=1e-12))
    return next(fitting, None)
