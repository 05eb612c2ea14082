"""Images, signals and rows: arrays of numbers between two bounds, normalised by channel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Domain, Rng
from seepage.core._likeness import Likeness
from seepage.core.errors import InvalidValue
from seepage.domains._made_up import draw_ellipses, draw_waves
from seepage.domains._pictures import Pictures
from seepage.domains._tokens import Tokens


@dataclass(frozen=True)
class Box(Domain):
    """Abstract: inputs `(C, ...)` with every entry between two bounds."""

    axes: ClassVar[str]
    out_of_range: ClassVar[str]

    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if len(self.shape) != len(self.axes.split(", ")) or min(self.shape) < 1:
            raise InvalidValue(f"expected a shape ({self.axes}), got {self.shape!r}")
        channels = self.shape[0]
        object.__setattr__(self, "mean", tuple(self.mean) or (0.0,) * channels)
        object.__setattr__(self, "std", tuple(self.std) or (1.0,) * channels)
        if not len(self.mean) == len(self.std) == channels or min(self.std) <= 0:
            raise InvalidValue(
                f"expected {channels} channel means and positive deviations, got "
                f"mean={self.mean!r}, std={self.std!r}"
            )
        if not self.bounds[0] < self.bounds[1]:
            raise InvalidValue(f"expected bounds (low, high) with low < high, got {self.bounds!r}")

    def normalise(self, inputs: Tensor) -> Tensor:
        """Subtract the mean and divide by the deviation of each channel."""
        return (inputs - self._by_channel(self.mean, inputs)) / self._by_channel(self.std, inputs)

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Undo `normalise`."""
        return inputs * self._by_channel(self.std, inputs) + self._by_channel(self.mean, inputs)

    def likeness(self, others: Tensor) -> Likeness:
        """Compare pictures in every view, and rows entry by entry."""
        return Pictures() if self.pictorial else super().likeness(others)

    def check(self, inputs: Tensor) -> None:
        """Raise `InvalidValue` unless these are finite inputs `(B, *shape)` within the bounds."""
        if tuple(inputs.shape[1:]) != self.shape:
            raise InvalidValue(
                f"expected inputs (B, {', '.join(map(str, self.shape))}), "
                f"got {tuple(inputs.shape)}; resize them or build the model for that shape"
            )
        if not inputs.is_floating_point():
            raise InvalidValue(
                f"expected inputs as floats, got {inputs.dtype}; {self.out_of_range}"
            )
        if not bool((finite := inputs.isfinite().flatten(1).all(1)).all()):
            bad = int((~finite).nonzero()[0])
            raise InvalidValue(f"expected finite inputs, got NaN or infinity in input {bad}")
        low, high = self.bounds
        # Compared as tensors: a bound such as 0.7 is smaller in float32 than as a Python float.
        if bool((outside := (inputs < low) | (inputs > high)).any()):
            # Which values they are is private.
            raise InvalidValue(
                f"expected inputs in [{low:g}, {high:g}], got {int(outside.sum())} of "
                f"{outside.numel()} values outside; {self.out_of_range}"
            )

    def _by_channel(self, values: tuple[float, ...], inputs: Tensor) -> Tensor:
        return _constant(values, len(self.shape) - 1, inputs.dtype, inputs.device)


def _scale(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = bounds
    return (low + (high - low) * values).clamp(low, high)


@lru_cache(maxsize=64)
def _constant(
    values: tuple[float, ...], trailing: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Make channel values once per device: a CUDA graph cannot contain a copy to the device."""
    # Made outside any transform: the cached tensor must outlive the transform that asks first.
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        return torch.tensor(values, dtype=dtype, device=device).reshape(-1, *(1,) * trailing)


@dataclass(frozen=True)
class Image(Box):
    """Images `(C, H, W)` with values in [0, 1].

    Example:
        >>> grey = Image((1, 28, 28), mean=(0.1307,), std=(0.3081,))
        >>> grey.project(grey.sample(2, rng=Rng(0)) + 5).max().item()
        1.0
    """

    kind = "images"
    pictorial = True
    axes = "C, H, W"
    out_of_range = "did you forget to undo the normalisation, or to divide by 255?"

    def make_up(self, size: int, *, rng: Rng) -> Tensor:
        """Draw overlapping ellipses, whose edges and smooth parts are like those of photographs."""
        drawn = [draw_ellipses(self.shape, rng.fork(i)) for i in range(size)]
        return _scale(torch.stack(drawn), self.bounds)


@dataclass(frozen=True)
class Signal(Box):
    """Signals `(C, L)`: heart beats, the time course of a brain region.

    Example:
        >>> Signal((1, 140), bounds=(-2.0, 2.0)).sample(3, rng=Rng(0)).shape
        torch.Size([3, 1, 140])
    """

    kind = "signals"
    pictorial = True
    axes = "C, L"
    out_of_range = "rescale the signals or give the domain wider bounds"

    def make_up(self, size: int, *, rng: Rng) -> Tensor:
        """Draw sums of waves, the slow ones stronger."""
        drawn = [draw_waves(self.shape, rng.fork(i)) for i in range(size)]
        return _scale(torch.stack(drawn), self.bounds)


@dataclass(frozen=True)
class Vector(Box):
    """Rows `(D,)` of numbers between the same bounds, such as standardised columns.

    Columns with names, categories or bounds of their own make a `Tabular`.

    Example:
        >>> Vector((2,), bounds=(-8.0, 8.0)).words(torch.tensor([0.5, 3.0]))
        ('column 0: 0.5', 'column 1: 3')
    """

    kind = "rows"
    axes = "D"
    out_of_range = "rescale the columns or give the domain wider bounds"

    def words(self, row: Tensor) -> tuple[str, ...]:
        """Describe one row `(D,)`, column by column, with every digit that float32 holds."""
        return tuple(
            f"column {place}: {float(str(value)):.15g}"
            for place, value in enumerate(row.float().cpu().numpy())
        )


def domain_of_shape(
    shape: tuple[int, ...],
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Image | Signal | Vector:
    """Images, signals or rows, by the number of axes of a shape.

    Example:
        >>> domain_of_shape((1, 140))
        Signal(shape=(1, 140), mean=(0.0,), std=(1.0,), bounds=(0.0, 1.0))
    """
    kinds: dict[int, type[Image | Signal | Vector]] = {3: Image, 2: Signal, 1: Vector}
    if len(shape) not in kinds:
        raise InvalidValue(f"expected a shape (C, H, W), (C, L) or (D,), got {shape!r}")
    return kinds[len(shape)](shape, mean, std, bounds)


def domain_of(inputs: Tensor) -> Domain:
    """What inputs are, as far as their shape and their values tell.

    Example:
        >>> domain_of(torch.zeros(2, 3, 8, 8)).kind, domain_of(torch.tensor([[4, 8, 1]])).kind
        ('images', 'texts')
    """
    if not inputs.is_floating_point():
        return Tokens(inputs[0].numel(), max(2, int(inputs.max()) + 1))
    low, high = float(inputs.min()), float(inputs.max())
    shape = tuple(inputs.shape[1:])
    # Volumes and the like are arrays of numbers.
    shape = shape if 1 <= len(shape) <= 3 else (inputs[0].numel(),)
    return domain_of_shape(shape, bounds=(low, high if low < high else low + 1))


CIFAR10 = Image((3, 32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
CIFAR100 = Image((3, 32, 32), mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762))
MNIST = Image((1, 28, 28), mean=(0.1307,), std=(0.3081,))
IMAGENET = Image((3, 224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
