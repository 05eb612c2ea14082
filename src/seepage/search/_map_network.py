"""The network of a decoder: from feature maps up to an input, one doubling after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate

from seepage.core import Rng

# Channels of the finest level at least.
_NARROWEST = 32
# What has no places begins on a grid with sides of an eighth of the input's.
_GRID = 8
# Numbers in the weights of a fully connected entry, unless it needs more for four channels.
_ENTRY, _FEWEST_CHANNELS = 2**22, 4
_BLOCKS = 2


class MapNetwork(nn.Module):
    """Makes inputs `(B, *shape)` of maps.

    It begins with the coarsest map, doubles its sides until they are those of the input, and reads
    every other map where it fits. What has no places, such as a vector of features, is spread over
    a coarse grid by a fully connected layer.

    Args:
        maps: Shape of each map, `(C, ...)`, or of features, `(d,)`.
        shape: Shape of an input: an image `(C, H, W)`, a signal `(C, L)`, or a row `(D,)`.
        width: Channels of the coarsest level at most; every finer one has half as many.

    Example:
        >>> import torch
        >>> network = MapNetwork([(8, 4, 4), (16, 2, 2)], (3, 16, 16), width=32)
        >>> network([torch.zeros(5, 8, 4, 4), torch.zeros(5, 16, 2, 2)]).shape
        torch.Size([5, 3, 16, 16])
    """

    def __init__(
        self, maps: Sequence[tuple[int, ...]], shape: tuple[int, ...], *, width: int
    ) -> None:
        super().__init__()
        self.shape = shape
        # The columns of a row are channels at one place.
        channels, *sides = shape if len(shape) > 1 else (*shape, 1)
        grid = tuple(math.ceil(side / _GRID) for side in sides)
        places = [_find_places(one, sides) or grid for one in maps]
        self.sizes = _double(min(places, key=math.prod), tuple(sides))
        self.enters = [
            next(level for level, size in enumerate(self.sizes) if _reaches(size, place, sides))
            for place in places
        ]
        widest = min(width, 2 * max(one[0] for one in maps))
        widths = [max(widest >> level, _NARROWEST) for level in range(len(self.sizes))]
        self.entries = nn.ModuleList(
            _MapEntry(one, _find_places(one, sides), grid, widths[level])
            for one, level in zip(maps, self.enters, strict=True)
        )
        befores = [widths[0], *widths[:-1]]
        axes = len(sides)
        self.grow = nn.ModuleList(
            _convolution(before, after, axes) for before, after in zip(befores, widths, strict=True)
        )
        self.levels = nn.ModuleList(
            nn.Sequential(*(_ResidualPair(after, axes) for _ in range(_BLOCKS))) for after in widths
        )
        self.norm = _normalisation(widths[-1], axes)
        self.leave = _convolution(widths[-1], channels, axes)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Make normalised inputs."""
        entered = [entry(one) for entry, one in zip(self.entries, maps, strict=True)]
        x = entered[0].new_zeros(())
        for level, size in enumerate(self.sizes):
            if level:
                x = self.grow[level](interpolate(x, size=size))
            for one, enters in zip(entered, self.enters, strict=True):
                if enters == level:
                    x = x + interpolate(one, size=size)
            x = self.levels[level](x)
        made: Tensor = self.leave(gelu(self.norm(x)))
        return made.reshape(-1, *self.shape)

    def draw_weights(self, rng: Rng) -> None:
        """Draw weights of variance one over the number of inputs; the rest does nothing yet."""
        with torch.no_grad():
            for name, buffer in self.named_buffers():
                buffer.fill_(1.0 if name.endswith("running_var") else 0.0)
            for name, weight in self.named_parameters():
                if weight.ndim > 1:
                    drawn = rng.fork(name).normal(weight.shape, like=weight)
                    weight.copy_(drawn / math.sqrt(weight[0].numel()))
                else:
                    weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)


class _MapEntry(nn.Module):
    """Brings one map to the channels of the level where it enters."""

    def __init__(
        self,
        shape: tuple[int, ...],
        places: tuple[int, ...] | None,
        grid: tuple[int, ...],
        width: int,
    ) -> None:
        super().__init__()
        axes = len(grid)
        self.grid, self.spread = grid, None
        channels = shape[0]
        self.scale = _normalisation(channels, axes, affine=False)
        if places is None:
            numbers, cells = math.prod(shape), math.prod(grid)
            channels = min(width, max(_FEWEST_CHANNELS, _ENTRY // (numbers * cells)))
            self.spread = nn.Linear(numbers, channels * cells)
            self.scale = _normalisation(numbers, 1, affine=False)
        self.enter = _convolution(channels, width, axes)

    def forward(self, values: Tensor) -> Tensor:
        """From `(B, *shape)` to `(B, width, ...)`."""
        if self.spread is None:
            spread = self.scale(values)
        else:
            flat = self.spread(self.scale(values.flatten(1)))
            spread = flat.reshape(len(flat), -1, *self.grid)
        entered: Tensor = self.enter(spread)
        return entered


class _ResidualPair(nn.Module):
    """Two convolutions behind batch normalisation: x + conv(gelu(norm(conv(gelu(norm(x))))))."""

    def __init__(self, channels: int, axes: int) -> None:
        super().__init__()
        self.first_norm = _normalisation(channels, axes)
        self.first = _convolution(channels, channels, axes)
        self.second_norm = _normalisation(channels, axes)
        self.second = _convolution(channels, channels, axes)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape `(B, channels, ...)`."""
        hidden = self.first(gelu(self.first_norm(x)))
        added: Tensor = x + self.second(gelu(self.second_norm(hidden)))
        return added


def _find_places(shape: tuple[int, ...], sides: Sequence[int]) -> tuple[int, ...] | None:
    """The places of a map, if they are places of the input; None if they are not."""
    places = tuple(shape[1:])
    if len(places) != len(sides) or any(p > 2 * s for p, s in zip(places, sides, strict=True)):
        return None
    return places


def _double(first: tuple[int, ...], sides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sizes from that of a map to that of the input.

    Example:
        >>> _double((7, 7), (28, 28)), _double((3,), (10,)), _double((34,), (32,))
        ([(7, 7), (14, 14), (28, 28)], [(3,), (6,), (10,)], [(32,)])
    """
    sizes = [tuple(map(min, first, sides))]
    while sizes[-1] != sides:
        sizes.append(tuple(min(2 * a, b) for a, b in zip(sizes[-1], sides, strict=True)))
    return sizes


def _reaches(size: tuple[int, ...], places: tuple[int, ...], sides: Sequence[int]) -> bool:
    """Whether a level is as fine as a map, or as the input."""
    return math.prod(size) >= math.prod(map(min, places, sides))


def _convolution(before: int, after: int, axes: int) -> nn.Module:
    kind = nn.Conv2d if axes == 2 else nn.Conv1d
    return kind(before, after, 3, padding=1)


def _normalisation(channels: int, axes: int, *, affine: bool = True) -> nn.Module:
    kind = nn.BatchNorm2d if axes == 2 else nn.BatchNorm1d
    return kind(channels, affine=affine)
