"""How alike a guess and a candidate look, forgiving what an eye forgives.

Each measure gives a table of similarities between guesses and candidates, 1 for what looks the
same. Images and signals are compared after brightness and contrast are removed, under small
shifts, mirrored, inverted, turned, cropped to the middle or to a corner, zoomed, and by halves.
Rows of a table and texts have measures of their own, which weigh rare values more.

No learned network is among them: a verdict must not depend on which weights are installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor
from torch.nn.functional import (
    affine_grid,
    avg_pool2d,
    conv2d,
    grid_sample,
    interpolate,
    pad,
)

from seepage.core import Domain
from seepage.domains.tabular import Tabular

Table = Mapping[str, Tensor]
Features = Mapping[str, Tensor]
Measure = Callable[[Tensor, Tensor], Tensor]
# Top, bottom, left and right of the part that is compared, as shares of the sides.
Frame = tuple[float, float, float, float]
_WHOLE: Frame = (0.0, 1.0, 0.0, 1.0)
_CENTRE: Frame = (0.1, 0.9, 0.1, 0.9)
_LENGTHWISE: tuple[Frame, ...] = ((0.0, 1.0, 0.0, 0.5), (0.0, 1.0, 0.5, 1.0))
_UPRIGHT: tuple[Frame, ...] = ((0.0, 0.5, 0.0, 1.0), (0.5, 1.0, 0.0, 1.0))


@dataclass(frozen=True)
class _Warp:
    """How a guess is turned, scaled and moved, and which part of it is known then."""

    angle: float = 0.0
    zoom: float = 1.0
    corner: tuple[int, int] = (0, 0)
    frame: Frame = _WHOLE

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
_SHIFT = 2
_PATCH = 8
_TINY = 1e-12
# What varies less, as a share of the contrast of the whole input, is one shade: the correlation
# of rounding errors would be as large as any.
_FLAT = 1e-3
# How many pixels a side become one: against noise, and for guesses that are blurred themselves.
_POOLED = {"pixels": 1, "coarse pixels": 2, "coarsest pixels": 4}


@dataclass(frozen=True, eq=False)
class View:
    """One way to look at guesses.

    Args:
        features: Of the guesses, turned or scaled.
        frame: The part that is compared; the whole by default.
    """

    features: Features
    frame: Frame = _WHOLE


@dataclass(frozen=True, eq=False)
class Similarity:
    """The measures for one kind of input.

    Args:
        public: Inputs of other people, which tell how rare a value is.
        domain: What an input is; tells the columns of a table.

    Example:
        >>> from seepage.core import Rng
        >>> images = Rng(0).uniform((5, 1, 16, 16))
        >>> measures = Similarity(images)
        >>> shown = measures.show(1 - images[:1].flip(-1))
        >>> found = measures.compare(shown, measures.embed(images))
        >>> {int(values.argmax()) for values in found.values()}
        {0}
    """

    public: Tensor
    domain: Domain | None = None

    def embed(self, candidates: Tensor) -> Features:
        """Candidates `(C, ...)` as `compare` wants them, to be computed once for many guesses."""
        candidates = candidates.detach().cpu()
        if not self._pictures:
            return {"inputs": candidates}
        shown = _shrink(_standardise(candidates.float()))
        found = {name: _blur(_pool(shown, size)) for name, size in _POOLED.items()}
        found["structure"] = _patches(shown)
        if candidates.ndim == 4:
            found["edges"] = _edge_energies(shown)
        else:
            found["samples"] = found["shifted samples"] = shown
        return found

    def show(self, guesses: Tensor) -> tuple[View, ...]:
        """Guesses `(G, ...)` in every way in which `compare` looks at them, as they are first."""
        guesses = guesses.detach().cpu()
        if not self._pictures:
            return (View(self.embed(guesses)),)
        if guesses.ndim == 3:
            signals = self.embed(guesses)
            halves = _LENGTHWISE if guesses.shape[-1] >= _SMALLEST else ()
            blurred = {name: known for name, known in signals.items() if name != "samples"}
            return (View(signals), *(View(blurred, half) for half in halves))
        sides = (guesses, guesses.flip(-1))
        if min(guesses.shape[-2:]) < _SMALLEST:
            return tuple(View(self.embed(side)) for side in sides)
        framed = [
            View(features, frame)
            for features in map(self.embed, sides)
            for frame in (_WHOLE, *_LENGTHWISE, *_UPRIGHT)
        ]
        small = [_shrink(_standardise(side.float())) for side in sides]
        # A guess that is both mirrored and one corner is too rare for the time that it takes.
        changed = [
            (side, change)
            for side, mirrored in zip(small, (False, True), strict=True)
            for change in _WARPS
            if not (mirrored and any(change.corner))
        ]
        # One call for all of them: most of the time goes into starting operations.
        every = self.embed(torch.cat([change(side) for side, change in changed]))
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

    def compare(
        self, shown: Sequence[View], candidates: Features, *, middle: Tensor | None = None
    ) -> Table:
        """Similarity of every guess to every candidate in the best view: measure to `(G, C)`.

        Args:
            shown: The guesses.
            candidates: As `embed` gives them.
            middle: Mean edges of all candidates, if these are a part of them.
        """
        if not self._pictures:
            return self._compare_values(shown[0].features["inputs"], candidates["inputs"])
        if "edges" in candidates:
            middle = candidates["edges"].mean(0) if middle is None else middle
            shown = [
                replace(view, features={**view.features, "edges": view.features["edges"] - middle})
                for view in shown
            ]
            candidates = {**candidates, "edges": candidates["edges"] - middle}
        return {
            name: _compare_views(_MEASURES[name], name, shown, known)
            for name, known in candidates.items()
        }

    def _compare_values(self, guesses: Tensor, candidates: Tensor) -> Table:
        if isinstance(self.domain, Tabular):
            return _compare_rows(guesses, candidates, self.public, self.domain)
        if not self.public.is_floating_point():
            return _compare_texts(guesses, candidates, self._rarity)
        first, second = (values.float().flatten(1) for values in (guesses, candidates))
        middle, scale = self._spread
        found = {"entries": _compare_vectors(first, second, middle, scale)}
        if self.public.ndim == 2:
            found["values"] = _compare_entries(first, second, scale)
        return found

    @cached_property
    def _rarity(self) -> Tensor:
        """How rare each word of a text is among public people."""
        return _find_rarity(self.public)

    @cached_property
    def _spread(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of every entry of a vector among public people."""
        public = self.public.float().flatten(1)
        spread = public.std(0).nan_to_num(0.0)
        return public.mean(0), torch.where(spread > 0, spread, torch.ones_like(spread))

    @property
    def _pictures(self) -> bool:
        """Whether inputs are images `(C, H, W)` or signals `(C, L)`."""
        return self.public.is_floating_point() and self.public.ndim in (3, 4)


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


def _unit(values: Tensor) -> Tensor:
    """Rows without their mean by channel, of unit length; `(N, C, H, W)` to `(N, D)`."""
    centred = (values - values.mean((-2, -1), keepdim=True)).flatten(1)
    flat = _FLAT * centred.shape[1] ** 0.5
    rows: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp(min=flat)
    return rows


def _compare_views(
    measure: Measure, name: str, shown: Sequence[View], candidates: Tensor
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
        left = (1 - alike.square()).clamp(min=0) ** _find_share(frame)
        whole = alike.sign() * (1 - left).sqrt()
        best = torch.maximum(best, torch.stack(whole.chunk(len(views))).amax(0))
    return best


def _find_share(frame: Frame) -> float:
    """The share of an image that a frame holds."""
    top, bottom, left, right = frame
    return (bottom - top) * (right - left)


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


def _compare_samples(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Absolute correlation of a signal as it is: the best there is against normal noise."""
    return (_unit(guesses) @ _unit(candidates).T).abs()


def _compare_structure(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Mean absolute correlation of patches: the structure term of SSIM, whatever the contrast."""
    first, second = guesses.flatten(1), candidates.flatten(1)
    return (first @ second.T).abs() / first.shape[1]


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


def _compare_edges(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Correlation of how strong edges of each direction and size are, place by place."""
    first, second = guesses.flatten(1), candidates.flatten(1)
    lengths = first.norm(dim=1)[:, None] * second.norm(dim=1)[None] + _TINY
    alike: Tensor = first @ second.T / lengths
    return alike


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


_MEASURES: Mapping[str, Measure] = {
    **dict.fromkeys(_POOLED, _correlate),
    "samples": _compare_samples,
    "shifted samples": _correlate,
    "structure": _compare_structure,
    "edges": _compare_edges,
}


def _compare_vectors(guesses: Tensor, candidates: Tensor, middle: Tensor, scale: Tensor) -> Tensor:
    """Absolute correlation of entries scaled by their spread over public inputs."""
    rows = [(torch.nan_to_num(v) - middle) / scale for v in (guesses, candidates)]
    first, second = (row / (row.norm(dim=1, keepdim=True) + _TINY) for row in rows)
    alike: Tensor = first @ second.T
    return alike.abs()


def _compare_entries(guesses: Tensor, candidates: Tensor, scale: Tensor) -> Tensor:
    """Mean over entries of how near they are: 1 if equal, 0 from one deviation apart on."""
    guesses = torch.nan_to_num(guesses, nan=math.inf)
    near = [(1 - (row - candidates).abs() / scale).clamp(min=0).mean(1) for row in guesses]
    return torch.stack(near)


def _compare_rows(guesses: Tensor, candidates: Tensor, public: Tensor, table: Tabular) -> Table:
    """Share of columns that agree, plain and weighed by how rare the candidate's value is."""
    agreement, weight = [], []
    for place, deviation in zip(table.places, table.deviations, strict=True):
        first, second, others = (rows[:, place].float() for rows in (guesses, candidates, public))
        if deviation is None:
            ours, theirs = first.argmax(1), second.argmax(1)
            agreement.append((ours[:, None] == theirs[None]).float())
            common = others.argmax(1).bincount(minlength=second.shape[1])[theirs] / len(public)
        else:
            spread = max(float(others.std()), 1e-6)
            near = (first[:, 0, None] - second[None, :, 0]).abs() / spread
            agreement.append((1 - near).clamp(min=0))
            ends = second[None, :, 0] + 0.5 * spread * torch.tensor([[-1.0], [1.0]])
            below = torch.searchsorted(others[:, 0].sort().values, ends)
            common = (below[1] - below[0]) / len(public)
        weight.append(-torch.log(common.clamp(min=1 / (len(public) + 1))))
    agree, rarity = torch.stack(agreement, dim=-1), torch.stack(weight, dim=-1)
    weighed = (agree * rarity).sum(-1) / (rarity.sum(-1) + _TINY)
    return {"columns": agree.mean(-1), "rare columns": weighed}


def _compare_texts(guesses: Tensor, candidates: Tensor, rarity: Tensor) -> Table:
    """Share of words in their place, and overlap of words weighed by how rare they are."""
    highest = max(len(rarity), int(candidates.max()) + 1)
    weights = torch.cat([rarity, rarity.new_full((highest - len(rarity),), float(rarity.max()))])
    guesses = torch.where(guesses < highest, guesses, -1).long()
    in_place = (guesses[:, None] == candidates[None]).float().mean(-1)
    counts = _count_words(candidates, highest)
    totals, shared, own = counts @ weights, [], []
    for guess in guesses:
        words, often = guess[guess >= 0].unique(return_counts=True)
        shared.append(torch.minimum(counts[:, words], often.float()) @ weights[words])
        own.append((often.float() * weights[words]).sum())
    overlap = torch.stack(shared)
    whole = torch.stack(own)[:, None] + totals - overlap
    return {"places": in_place, "words": overlap / (whole + _TINY)}


def _find_rarity(texts: Tensor) -> Tensor:
    """Minus the logarithm of the share of texts that have each word."""
    words, _ = texts.clamp(min=0).long().sort(1)
    repeated = torch.zeros_like(words, dtype=torch.bool)
    repeated[:, 1:] = words[:, 1:] == words[:, :-1]
    seen = torch.bincount(words[~repeated]).float()
    return -torch.log((seen + 1) / (len(texts) + 2))


def _count_words(texts: Tensor, highest: int) -> Tensor:
    counts = torch.zeros(len(texts), highest)
    valid = (texts >= 0).float()
    return counts.scatter_add(1, texts.clamp(min=0).long(), valid)
