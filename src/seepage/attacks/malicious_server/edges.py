"""Where one bin ends and the next begins: quantiles of what the bins measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

import torch
from torch import Tensor

from seepage.core import Task
from seepage.core.errors import InvalidValue, UnknownName
from seepage.data import load
from seepage.data.catalogue import require_split

Shape = Literal["normal", "laplace"]

# Of the laws with mean 0 and deviation 1.
QUANTILES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "normal": lambda p: 2**0.5 * torch.erfinv(2 * p - 1),
        "laplace": lambda p: -(p - 0.5).sign() * (1 - 2 * (p - 0.5).abs()).log() / 2**0.5,
    }
)
PROBABILITIES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "normal": lambda z: (1 + torch.erf(z / 2**0.5)) / 2,
        "laplace": lambda z: 0.5 + z.sign() * (1 - (-(2**0.5) * z.abs()).exp()) / 2,
    }
)


class Edges(Protocol):
    """Quantiles of a linear functional of private inputs, guessed before seeing any."""

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """The quantiles at these levels, `(K,)`, of `<functional, x>` with x in natural units."""


def reach(functional: Tensor, task: Task) -> Tensor:
    """The lowest and the highest value that the functional of an input can have, `(2,)`."""
    low, high = task.domain.bounds
    ends = torch.stack([low * functional, high * functional])
    return torch.stack([ends.amin(0).sum(), ends.amax(0).sum()])


@dataclass(frozen=True, kw_only=True)
class Law:
    """Quantiles of a law that the server assumes, within what inputs can reach.

    Args:
        shape: "normal" or "laplace".
        mean: Of the functional, in natural units; the default is the brightness of photographs,
            measured on CIFAR-10's training images.
        std: Its deviation.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """

    shape: Shape = "normal"
    mean: float = 0.474
    std: float = 0.126

    def __post_init__(self) -> None:
        """Check the law."""
        if self.shape not in QUANTILES:
            raise UnknownName("law", self.shape, QUANTILES)
        if not self.std > 0:
            raise InvalidValue(f"expected std > 0, got {self.std!r}")

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """Scale the quantiles of the standard law; the functional is taken to follow it."""
        below, up_to = PROBABILITIES[self.shape]((reach(functional, task) - self.mean) / self.std)
        within = QUANTILES[self.shape](below + levels * (up_to - below))
        return self.mean + self.std * within


@dataclass(frozen=True, kw_only=True)
class Public:
    """Quantiles measured on data that everybody has.

    Args:
        data: Name of the data set.
        split: Of it; private data should be of another.
    """

    data: str
    split: str = "train"

    def __post_init__(self) -> None:
        """Refuse data that is not there before anything is planted."""
        require_split(self.data, self.split)

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """Measure the functional on all of it."""
        shape = task.domain.shape
        pixels = shape[-1] if len(shape) == 3 else None
        inputs = load(self.data, split=self.split, pixels=pixels).inputs
        if tuple(inputs.shape[1:]) != tuple(shape):
            raise InvalidValue(
                f"expected public data of shape {tuple(shape)}, got {self.data!r} of shape "
                f"{tuple(inputs.shape[1:])}; choose data like the private ones"
            )
        measured = inputs.flatten(1).double() @ functional.double().cpu()
        return torch.quantile(measured, levels.double().cpu())
