"""A person's input as a small picture inside the page."""

from __future__ import annotations

import base64
import io

import torch
from torch import Tensor

from seepage.report.page.markup import Markup, element, joined

# Longest side of a picture, in pixels; larger images are reduced.
LARGEST = 96
POINTS = 160


Shown = Tensor | tuple[str, ...]


def picture(values: Shown, *, alt: str, over: Shown | None = None) -> Markup:
    """An image `(C, H, W)` as pixels, words as words; anything else, `(C, L)` or `(L,)`, as lines.

    Args:
        values: One person's input or a guess at it, in natural units, or in words.
        alt: What it shows, for those who do not see it.
        over: The truth under a guess: lines are drawn over it, faintly and to the same scale, and
            words that are not its own are marked.
    """
    if not isinstance(values, Tensor):
        return words(values, over=over if isinstance(over, tuple) else values)
    over = over if isinstance(over, Tensor) else None
    if values.ndim == 3:
        return element("img", {"class": "pixels", "src": png(values), "alt": alt})
    return signal(values, alt=alt, over=over)


def words(said: tuple[str, ...], *, over: tuple[str, ...]) -> Markup:
    """A text or the columns of a row, with the words marked that differ from the truth's.

    Example:
        >>> words(("good", "night"), over=("good", "morrow"))
        '<p class="said"><span>good</span> <mark>night</mark> </p>'
    """
    pairs = zip(said, over, strict=True)
    return element(
        "p",
        {"class": "said"},
        *(
            joined(element("span" if ours == theirs else "mark", None, ours), " ")
            for ours, theirs in pairs
        ),
    )


def png(image: Tensor) -> str:
    """An image `(C, H, W)` in [0, 1] as a data address, its pixels kept as they are if it is small.

    Example:
        >>> png(torch.zeros(1, 2, 2))[:22]
        'data:image/png;base64,'
    """
    from PIL import Image

    colours = image.expand(3, -1, -1) if image.shape[0] == 1 else image[:3]
    levels = (colours.nan_to_num().clamp(0, 1).permute(1, 2, 0) * 255).round().byte()
    drawn = Image.fromarray(levels.contiguous().numpy())
    drawn.thumbnail((LARGEST, LARGEST))
    kept = io.BytesIO()
    drawn.save(kept, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode("ascii")


def signal(values: Tensor, *, alt: str, over: Tensor | None = None) -> Markup:
    """A signal `(C, L)` or `(L,)` as one line per channel; arguments as for `picture`."""
    drawn = {"": _channels(values), "under": None if over is None else _channels(over)}
    layers = {kind: lines for kind, lines in drawn.items() if lines is not None}
    low = min(float(lines.min()) for lines in layers.values())
    high = max(float(lines.max()) for lines in layers.values())
    lines = [
        _line((line - low) / max(high - low, 1e-12), kind)
        for kind, channels in reversed(layers.items())
        for line in channels
    ]
    frame = {"class": "signal", "viewBox": "0 0 96 40", "role": "img", "aria-label": alt}
    return element("svg", frame, *lines)


def _channels(values: Tensor) -> Tensor:
    lines = values.nan_to_num().reshape(-1, values.shape[-1])
    return lines[:, :: max(1, lines.shape[-1] // POINTS)]


def _line(heights: Tensor, kind: str) -> Markup:
    """A line of heights in [0, 1]."""
    across = torch.linspace(2, 94, len(heights)).tolist()
    points = " ".join(
        f"{x:.1f},{36 - 32 * y:.1f}" for x, y in zip(across, heights.tolist(), strict=True)
    )
    return element("polyline", {"class": kind or None, "points": points})
