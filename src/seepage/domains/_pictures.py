"""How alike two images or two signals look.

They are compared in all their views, under small shifts and inverted. No learned network is among
the measures: a verdict must not depend on which weights are installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from seepage.core._likeness import TINY, Features, Frame, Likeness, Measure, Table, View
from seepage.domains._picture_views import embed_pictures, show_pictures

_Measure = Callable[[Tensor, Tensor], Tensor]
_SHIFT = 2
# What varies less, as a share of the contrast of the whole input, is one shade: the correlation
# of rounding errors would be as large as any.
_FLAT = 1e-3


class Pictures(Likeness):
    """Images `(C, H, W)` and signals `(C, L)`, compared in all their views.

    Example:
        >>> from seepage.core import Rng
        >>> images = Rng(0).uniform((5, 1, 16, 16))
        >>> shown = Pictures().show(1 - images[:1].flip(-1))
        >>> found = Pictures().compare(shown, Pictures().embed(images))
        >>> {int(values.argmax()) for values in found.values()}
        {0}
    """

    measures = {  # noqa: RUF012 - never changed
        "pixels": Measure(seen=True, near=0.98, copy=0.98),
        "coarse pixels": Measure(),
        "coarsest pixels": Measure(),
        # The other measures of a signal blur it, so that noise would drown those that do not. A
        # shift that is forgiven costs power: one of two beats that differ by it may be either.
        "samples": Measure(weight=8.0),
        "shifted samples": Measure(weight=4.0),
        "structure": Measure(seen=True, near=0.9),
        "edges": Measure(),
    }

    def embed(self, candidates: Tensor) -> Features:
        """Candidates as `compare` wants them."""
        return embed_pictures(candidates.detach().cpu())

    def show(self, guesses: Tensor) -> tuple[View, ...]:
        """Guesses in all their views, as they are first."""
        return show_pictures(guesses.detach().cpu())

    def compare(
        self, shown: Sequence[View], candidates: Features, *, middle: Tensor | None = None
    ) -> Table:
        """Similarity of every guess to every candidate in the best view."""
        if "edges" in candidates:
            middle = candidates["edges"].mean(0) if middle is None else middle
            shown = [
                replace(view, features={**view.features, "edges": view.features["edges"] - middle})
                for view in shown
            ]
            candidates = {**candidates, "edges": candidates["edges"] - middle}
        return {
            name: _compare_views(_COMPARED[name], name, shown, known)
            for name, known in candidates.items()
        }


def _unit(values: Tensor) -> Tensor:
    """Rows without their mean by channel, of unit length; `(N, C, H, W)` to `(N, D)`."""
    centred = (values - values.mean((-2, -1), keepdim=True)).flatten(1)
    flat = _FLAT * centred.shape[1] ** 0.5
    rows: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp(min=flat)
    return rows


def _compare_views(
    measure: _Measure, name: str, shown: Sequence[View], candidates: Tensor
) -> Tensor:
    """Compare guesses and candidates inside the frame of each view; the best view counts.

    Of two views, the better one explains more of the guess: a correlation r over a share w of it
    leaves (1 - r^2)^w of its variance if the rest is unexplained. As a correlation over the whole,
    that is sqrt(1 - (1 - r^2)^w).
    """
    best = torch.full((len(shown[0].features[name]), len(candidates)), -1.0)
    showing = [view for view in shown if name in view.features]
    for frame in dict.fromkeys(view.frame for view in showing):
        views = [view.features[name] for view in showing if view.frame == frame]
        alike = measure(torch.cat([_cut(view, frame) for view in views]), _cut(candidates, frame))
        share = (frame[1] - frame[0]) * (frame[3] - frame[2])
        left = (1 - alike.square()).clamp(min=0) ** share
        whole = alike.sign() * (1 - left).sqrt()
        best = torch.maximum(best, torch.stack(whole.chunk(len(views))).amax(0))
    return best


def _cut(values: Tensor, frame: Frame) -> Tensor:
    """The part of features `(N, C, H, W, ...)` inside a frame."""
    top, bottom, left, right = frame
    height, width = values.shape[2:4]
    return values[
        :,
        :,
        math.ceil(top * height) : math.floor(bottom * height),
        math.ceil(left * width) : math.floor(right * width),
    ]


def _correlate(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Largest absolute correlation under shifts of up to two pixels of an image of 32."""
    margins = [min(_SHIFT, size // 12) for size in candidates.shape[-2:]]
    height, width = (
        size - 2 * margin for size, margin in zip(candidates.shape[-2:], margins, strict=True)
    )
    top, left = margins
    inner = _unit(candidates[..., top : top + height, left : left + width])
    # All shifts at once. A candidate without its mean needs no windows without theirs.
    along = conv2d(guesses, inner.reshape(len(candidates), -1, height, width))
    return (along / _measure_windows(guesses, height, width)).abs().amax((-2, -1))


def _measure_windows(values: Tensor, height: int, width: int) -> Tensor:
    """Length of each window without its mean by channel, `(N, 1, rows, columns)`."""
    # In double precision, since a window of few shades is the difference of almost equal numbers.
    exact = values.double()
    squares, means = (
        avg_pool2d(each, kernel_size=(height, width), stride=1) for each in (exact.square(), exact)
    )
    variance = (squares - means.square()).sum(1, keepdim=True)
    flat = values.shape[1] * _FLAT**2
    lengths: Tensor = (variance.clamp(min=flat) * height * width).sqrt()
    return lengths.to(values)


def _compare_structure(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Mean absolute correlation of patches: the structure term of SSIM, whatever the contrast."""
    first, second = guesses.flatten(1), candidates.flatten(1)
    return (first @ second.T).abs() / first.shape[1]


def _compare_edges(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Correlation of how strong edges of each direction and size are, place by place."""
    first, second = guesses.flatten(1), candidates.flatten(1)
    lengths = first.norm(dim=1)[:, None] * second.norm(dim=1)[None] + TINY
    alike: Tensor = first @ second.T / lengths
    return alike


_COMPARED: Mapping[str, _Measure] = {
    **dict.fromkeys(("pixels", "coarse pixels", "coarsest pixels"), _correlate),
    # Of a signal as it is: the best there is against normal noise.
    "samples": lambda guesses, candidates: (_unit(guesses) @ _unit(candidates).T).abs(),
    "shifted samples": _correlate,
    "structure": _compare_structure,
    "edges": _compare_edges,
}
