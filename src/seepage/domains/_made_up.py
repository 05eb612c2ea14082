"""Images and signals that nobody has, for an adversary that has no others to rehearse on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.core import Rng

# Shapes in a made-up image. Few large ones and many small ones look like photographs to a search.
_SHAPES = 40


def draw_ellipses(shape: tuple[int, ...], rng: Rng) -> Tensor:
    """Draw one image of ellipses, with sizes s of density s^-3, over a gradient of colour."""
    channels, height, width = shape
    rows = torch.linspace(-1, 1, height)[:, None]
    columns = torch.linspace(-1, 1, width)[None]
    drawn = rng.uniform((_SHAPES, 6))
    colours = rng.fork("colours").uniform((_SHAPES + 2, channels))
    # One brightness for all channels, and a little colour.
    colours = (0.7 * colours[:, :1] + 0.3 * colours).clamp(0, 1)
    fade = (rows + columns + 2) / 4
    image = colours[0, :, None, None] * fade + colours[1, :, None, None] * (1 - fade)
    for (x, y, size, ratio, angle, shade), colour in zip(drawn, colours[2:], strict=True):
        radius = 0.08 / torch.sqrt(1 - 0.99 * size)
        turned = angle * math.pi
        # An ellipse reaches no farther than its radius, and most are small.
        high, wide = (_find_span(*each) for each in ((y, radius, height), (x, radius, width)))
        down, right, part = rows[high], columns[:, wide], image[:, high, wide]
        across = (right - 2 * x + 1) * turned.cos() + (down - 2 * y + 1) * turned.sin()
        along = (down - 2 * y + 1) * turned.cos() - (right - 2 * x + 1) * turned.sin()
        inside = (across / radius).square() + (along / (radius * (0.3 + 0.7 * ratio))).square() < 1
        lit = (colour[:, None, None] + 0.3 * (shade - 0.5) * across[None]).clamp(0, 1)
        image[:, high, wide] = torch.where(inside[None], lit, part)
    return image


def _find_span(centre: Tensor, radius: Tensor, size: int) -> slice:
    """The pixels of an axis from 0 to 1 that may be within half a radius, and one on each side."""
    middle, reach = float(centre) * (size - 1), float(radius) / 2 * (size - 1)
    return slice(max(math.floor(middle - reach) - 1, 0), max(math.ceil(middle + reach) + 2, 0))


def draw_waves(shape: tuple[int, ...], rng: Rng) -> Tensor:
    """Draw one signal, a sum of waves of which the slow ones are stronger."""
    channels, length = shape
    waves = min(length, 24)
    numbers = torch.arange(1, waves + 1)
    time = torch.arange(length) / length
    phases = 2 * math.pi * rng.uniform((channels, waves, 1))
    heights = rng.fork("heights").normal((channels, waves, 1)) / numbers[None, :, None]
    signal = (heights * (2 * math.pi * numbers[None, :, None] * time + phases).sin()).sum(1)
    return 0.5 + 0.5 * signal / signal.abs().max().clamp(min=1e-6)
