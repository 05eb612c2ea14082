"""The views in which images and signals are compared, and what is compared in each.

Brightness and contrast are removed. A guess is shown as it is, mirrored, turned, cropped to the
middle or to a corner, zoomed, and by halves; what is compared are pixels of several sizes, patches
of unit contrast, and the energy of edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, conv2d, grid_sample, interpolate, pad

from seepage.core._likeness import WHOLE, Features, Frame, View

_CENTRE: Frame = (0.1, 0.9, 0.1, 0.9)
_LENGTHWISE: tuple[Frame, ...] = ((0.0, 1.0, 0.0, 0.5), (0.0, 1.0, 0.5, 1.0))
_UPRIGHT: tuple[Frame, ...] = ((0.0, 0.5, 0.0, 1.0), (0.5, 1.0, 0.0, 1.0))


@dataclass(frozen=True)
class _Warp:
    """How a guess is turned, scaled and moved, and which part of it is known then."""

    angle: float = 0.0
    zoom: float = 1.0
    corner: tuple[int, int] = (0, 0)
    frame: Frame = WHOLE

    def __call__(self, images: Tensor) -> Tensor:
        return warp(images, angle=self.angle, zoom=self.zoom, corner=self.corner)


def _shrink_to_corners(zoom: float) -> tuple[_Warp, ...]:
    """What undoes a crop that kept one corner."""
    ends = {-1: (0.0, zoom), 1: (1 - zoom, 1.0)}
    return tuple(
        _Warp(zoom=zoom, corner=(y, x), frame=(*ends[y], *ends[x])) for y in ends for x in ends
    )


_WARPS: tuple[_Warp, ...] = (
    _Warp(zoom=0.8, frame=_CENTRE),
    _Warp(zoom=0.9, frame=_CENTRE),
    *_shrink_to_corners(0.8),
    *_shrink_to_corners(0.9),
    _Warp(zoom=1.11),
    _Warp(zoom=1.25),
    *(_Warp(angle=angle) for angle in (-10.0, -5.0, 5.0, 10.0)),
)
# Smaller inputs are compared as they are: a part of them tells nobody apart.
_SMALLEST = 16
_LARGEST_SIDE = 32
# Entries of the pictures that are made small at once.
_TOGETHER = 2**20
_PATCH = 8
_TINY = 1e-12
# How many pixels a side become one: against noise, and for guesses that are blurred themselves.
_POOLED = {"pixels": 1, "coarse pixels": 2, "coarsest pixels": 4}


def embed_pictures(pictures: Tensor) -> Features:
    """Images `(N, C, H, W)` or signals `(N, C, L)` as they are compared, by measure."""
    shown = _standardise_small(pictures)
    found = {name: _blur(_pool(shown, size)) for name, size in _POOLED.items()}
    found["structure"] = _patches(shown)
    if pictures.ndim == 4:
        found["edges"] = _edge_energies(shown)
    else:
        found["samples"] = found["shifted samples"] = shown
    return found


def show_pictures(guesses: Tensor) -> tuple[View, ...]:
    """Guesses in every view, as they are first."""
    if guesses.ndim == 3:
        signals = embed_pictures(guesses)
        halves = _LENGTHWISE if guesses.shape[-1] >= _SMALLEST else ()
        blurred = {name: known for name, known in signals.items() if name != "samples"}
        return (View(signals), *(View(blurred, half) for half in halves))
    sides = (guesses, guesses.flip(-1))
    if min(guesses.shape[-2:]) < _SMALLEST:
        return tuple(View(embed_pictures(side)) for side in sides)
    framed = [
        View(features, frame)
        for features in map(embed_pictures, sides)
        for frame in (WHOLE, *_LENGTHWISE, *_UPRIGHT)
    ]
    small = [_standardise_small(side) for side in sides]
    # A guess that is both mirrored and one corner is too rare for the time that it takes.
    changed = [
        (side, change)
        for side, mirrored in zip(small, (False, True), strict=True)
        for change in _WARPS
        if not (mirrored and any(change.corner))
    ]
    # One call for all of them: most of the time goes into starting operations.
    every = embed_pictures(torch.cat([change(side) for side, change in changed]))
    return (
        *framed,
        *(
            View(
                {k: v[n * len(guesses) : (n + 1) * len(guesses)] for k, v in every.items()},
                change.frame,
            )
            for n, (_, change) in enumerate(changed)
        ),
    )


def _standardise_small(pictures: Tensor) -> Tensor:
    """Pictures in one brightness and contrast, at most 32 pixels a side."""
    # Several large ones at once would need several times their memory.
    parts = torch.split(pictures, max(1, _TOGETHER // max(1, pictures[:1].numel())))
    return torch.cat([_shrink(_standardise(part.float())) for part in parts])


def _standardise(values: Tensor) -> Tensor:
    """Remove the brightness of each channel and the contrast; entries that are not finite too."""
    values = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    values = values.unsqueeze(2) if values.ndim == 3 else values
    values = values.clamp(-1e9, 1e9)
    centred = values - values.mean((-2, -1), keepdim=True)
    return centred / (centred.square().mean((1, 2, 3), keepdim=True).sqrt() + _TINY)


def _shrink(values: Tensor) -> Tensor:
    """At most 32 pixels a side: enough to tell people apart, and cheap. Signals stay whole."""
    height, width = values.shape[-2:]
    scale = _LARGEST_SIDE / max(height, width)
    if height == 1 or scale >= 1:
        return values
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return interpolate(values, size=size, mode="area")


def _pool(values: Tensor, size: int) -> Tensor:
    """Means of `size` pixels along every axis that has room for it."""
    sides = [size if length >= 4 * size else 1 for length in values.shape[-2:]]
    pooled: Tensor = avg_pool2d(values, kernel_size=tuple(sides))
    return pooled


def _blur(values: Tensor, sigma: float = 0.8) -> Tensor:
    """Gaussian blur along every axis that is longer than one."""
    radius = max(1, round(3 * sigma))
    bell = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    bell = bell / bell.sum()
    planes = values.reshape(-1, 1, *values.shape[-2:])
    for axis, size in ((0, values.shape[-2]), (1, values.shape[-1])):
        if size > radius:
            room = (radius, radius, 0, 0) if axis else (0, 0, radius, radius)
            shape = (1, 1, 1, -1) if axis else (1, 1, -1, 1)
            planes = conv2d(pad(planes, room, mode="replicate"), bell.reshape(shape))
    return planes.reshape(values.shape)


def warp(
    images: Tensor, *, angle: float = 0.0, zoom: float = 1.0, corner: tuple[int, int] = (0, 0)
) -> Tensor:
    """Turn images by `angle` degrees and scale them about a point; edges are continued.

    Args:
        images: `(N, C, H, W)`.
        angle: In degrees.
        zoom: More than 1 shows a part, less than 1 adds an edge.
        corner: The point that stays where it is, down and across: -1 for the top and the left, 0
            for the middle, 1 for the bottom and the right.

    Example:
        >>> images = torch.rand(2, 3, 16, 16)
        >>> torch.allclose(warp(images), images, atol=1e-5)
        True
    """
    turn = math.radians(angle)
    across, along = math.cos(turn) / zoom, math.sin(turn) / zoom
    down, right = (end * (1 - 1 / zoom) for end in corner)
    matrix = torch.tensor([[across, -along, right], [along, across, down]])
    images = torch.nan_to_num(images.float(), nan=0.0, posinf=0.0, neginf=0.0)
    height, width = images.shape[-2:]
    # The grid is in units of half sides, so turning must allow for images that are not square.
    stretch = torch.tensor([[1.0, height / width, 1.0], [width / height, 1.0, 1.0]])
    grid = affine_grid(
        (matrix * stretch).expand(len(images), 2, 3), list(images.shape), align_corners=False
    )
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def _patches(values: Tensor) -> Tensor:
    """Overlapping patches of unit contrast, `(N, C, rows, columns, height, width)`."""
    sides = [min(_PATCH, size) for size in values.shape[-2:]]
    cut = values.unfold(2, sides[0], max(1, sides[0] // 2)).unfold(
        3, sides[1], max(1, sides[1] // 2)
    )
    centred = cut - cut.mean((-2, -1), keepdim=True)
    # A patch of a tenth of the contrast of the whole input is mostly noise.
    contrast = (centred.square().mean((-2, -1), keepdim=True) + 0.01).sqrt()
    patches: Tensor = centred / contrast
    return patches


def _edge_energies(values: Tensor) -> Tensor:
    """Moduli of Gabor filters of four directions and two sizes, pooled over 4 x 4 pixels.

    `(N, filters, rows, columns)`.
    """
    grey = values.mean(1, keepdim=True)
    found = []
    for sigma in (1.0, 2.0):
        filters = _gabor_filters(sigma)
        radius = filters.shape[-1] // 2
        framed = pad(grey, (radius,) * 4, mode="replicate" if radius else "constant")
        even, odd = conv2d(framed, filters).square().chunk(2, dim=1)
        energy = (even + odd).sqrt()
        found.append(avg_pool2d(energy, kernel_size=min(4, *energy.shape[-2:])))
    return torch.cat(found, dim=1)


@cache
def _gabor_filters(sigma: float) -> Tensor:
    """The even filters of four directions, then the odd ones, `(8, 1, size, size)`."""
    radius = round(2 * sigma)
    y, x = torch.meshgrid(*(torch.arange(-radius, radius + 1.0),) * 2, indexing="ij")
    angles = torch.arange(4)[:, None, None] * torch.pi / 4
    along = x * angles.cos() + y * angles.sin()
    bell = torch.exp(-(x**2 + y**2) / (2 * sigma**2))
    even, odd = bell * torch.cos(along * 1.5 / sigma), bell * torch.sin(along * 1.5 / sigma)
    even = even - bell * even.sum((1, 2), keepdim=True) / bell.sum()
    both = torch.cat([even, odd])
    filters: Tensor = both / both.flatten(1).norm(dim=1)[:, None, None]
    return filters[:, None]
