"""How alike a guess and a candidate look, forgiving what an eye forgives.

Each measure gives a table of similarities between guesses and candidates, 1 for what looks the
same. Images and signals are compared after brightness and contrast are removed, under small
shifts, mirrored, and inverted. Rows of a table and texts have measures of their own, which weigh
rare values more.

No learned network is among them: a verdict must not depend on which weights are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, pad

from seepage.core import Domain
from seepage.domains.tabular import Tabular

Table = Mapping[str, Tensor]
Views = Mapping[str, Tensor]
_LARGEST_SIDE = 32
_SHIFT = 2
_PATCH = 8
_TINY = 1e-12
# How many pixels a side become one: against noise, and for guesses that are blurred themselves.
_POOLED = {"pixels": 1, "coarse pixels": 2, "coarsest pixels": 4}


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

    def embed(self, candidates: Tensor) -> Views:
        """Candidates `(C, ...)` as `compare` wants them, to be computed once for many guesses."""
        candidates = candidates.detach().cpu()
        if not self._pictures:
            return {"inputs": candidates}
        shown = _shrink(_standardise(candidates.float()))
        views = {name: _blur(_pool(shown, size)) for name, size in _POOLED.items()}
        views["structure"] = _patches(shown)
        if candidates.ndim == 4:
            views["edges"] = _edge_energies(shown)
        return views

    def show(self, guesses: Tensor) -> tuple[Views, ...]:
        """Guesses `(G, ...)` as `compare` wants them: as they are, and images mirrored as well."""
        guesses = guesses.detach().cpu()
        views = [guesses, guesses.flip(-1)] if self._pictures and guesses.ndim == 4 else [guesses]
        return tuple(self.embed(view) for view in views)

    def compare(self, shown: Sequence[Views], candidates: Views) -> Table:
        """Similarity of every guess to every candidate: measure to `(G, C)`."""
        if not self._pictures:
            return self._compare_values(shown[0]["inputs"], candidates["inputs"])
        return {
            name: torch.stack([_MEASURES[name](view[name], known) for view in shown]).amax(0)
            for name, known in candidates.items()
        }

    def _compare_values(self, guesses: Tensor, candidates: Tensor) -> Table:
        if isinstance(self.domain, Tabular):
            return _compare_rows(guesses, candidates, self.public, self.domain)
        if not self.public.is_floating_point():
            return _compare_texts(guesses, candidates, self.public)
        rows = (values.float().flatten(1) for values in (guesses, candidates, self.public))
        return {"entries": _compare_vectors(*rows)}

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
    rows: Tensor = centred / (centred.norm(dim=1, keepdim=True) + _TINY)
    return rows


def _correlate(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Largest absolute correlation under shifts of up to two pixels of an image of 32."""
    margins = [min(_SHIFT, size // 12) for size in candidates.shape[-2:]]
    height, width = (
        size - 2 * margin for size, margin in zip(candidates.shape[-2:], margins, strict=True)
    )
    top, left = margins
    inner = _unit(guesses[..., top : top + height, left : left + width])
    best = torch.zeros(len(guesses), len(candidates))
    for y, x in product(range(2 * top + 1), range(2 * left + 1)):
        window = _unit(candidates[..., y : y + height, x : x + width])
        best = torch.maximum(best, (inner @ window.T).abs())
    return best


def _compare_structure(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Mean absolute correlation of patches: the structure term of SSIM, whatever the contrast."""
    alike: Tensor = guesses @ candidates.T
    return alike.abs()


def _patches(values: Tensor) -> Tensor:
    """Overlapping patches of unit contrast, `(N, patches x entries)`."""
    sides = [min(_PATCH, size) for size in values.shape[-2:]]
    cut = values.unfold(2, sides[0], max(1, sides[0] // 2)).unfold(
        3, sides[1], max(1, sides[1] // 2)
    )
    centred = cut - cut.mean((-2, -1), keepdim=True)
    # A patch of a tenth of the contrast of the whole input is mostly noise.
    contrast = (centred.square().mean((-2, -1), keepdim=True) + 0.01).sqrt()
    rows: Tensor = (centred / contrast).flatten(1)
    return rows.div(rows.shape[1] ** 0.5)


def _compare_edges(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Correlation of how strong edges of each direction and size are, place by place."""
    middle = candidates.mean(0)
    first, second = guesses - middle, candidates - middle
    lengths = first.norm(dim=1)[:, None] * second.norm(dim=1)[None] + _TINY
    alike: Tensor = first @ second.T / lengths
    return alike


def _edge_energies(values: Tensor) -> Tensor:
    """Moduli of Gabor filters of four directions and two sizes, pooled over 4 x 4 pixels."""
    grey = values.mean(1, keepdim=True)
    found = []
    for sigma in (1.0, 2.0):
        even, odd = _gabor_filters(sigma)
        radius = even.shape[-1] // 2
        framed = pad(grey, (radius,) * 4, mode="replicate" if radius else "constant")
        energy = (conv2d(framed, even).square() + conv2d(framed, odd).square()).sqrt()
        found.append(avg_pool2d(energy, kernel_size=min(4, *energy.shape[-2:])))
    return torch.cat([part.flatten(1) for part in found], dim=1)


def _gabor_filters(sigma: float) -> tuple[Tensor, Tensor]:
    radius = round(2 * sigma)
    y, x = torch.meshgrid(*(torch.arange(-radius, radius + 1.0),) * 2, indexing="ij")
    angles = torch.arange(4)[:, None, None] * torch.pi / 4
    along = x * angles.cos() + y * angles.sin()
    bell = torch.exp(-(x**2 + y**2) / (2 * sigma**2))
    even, odd = bell * torch.cos(along * 1.5 / sigma), bell * torch.sin(along * 1.5 / sigma)
    even = even - bell * even.sum((1, 2), keepdim=True) / bell.sum()
    even, odd = (p / p.flatten(1).norm(dim=1)[:, None, None] for p in (even, odd))
    return even[:, None], odd[:, None]


_MEASURES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    **dict.fromkeys(_POOLED, _correlate),
    "structure": _compare_structure,
    "edges": _compare_edges,
}


def _compare_vectors(guesses: Tensor, candidates: Tensor, public: Tensor) -> Tensor:
    """Absolute correlation of entries scaled by their spread over public inputs."""
    spread = public.std(0).nan_to_num(0.0)
    scale = torch.where(spread > 0, spread, torch.ones_like(spread))
    rows = [(torch.nan_to_num(v) - public.mean(0)) / scale for v in (guesses, candidates)]
    first, second = (row / (row.norm(dim=1, keepdim=True) + _TINY) for row in rows)
    alike: Tensor = first @ second.T
    return alike.abs()


def _compare_rows(guesses: Tensor, candidates: Tensor, public: Tensor, table: Tabular) -> Table:
    """Share of columns that agree, plain and weighed by how rare the candidate's value is."""
    agreement, weight = [], []
    for place, deviation in zip(table.places, table.deviations, strict=True):
        first, second, others = (rows[:, place].float() for rows in (guesses, candidates, public))
        if deviation is None:
            ours, theirs = first.argmax(1), second.argmax(1)
            agreement.append((ours[:, None] == theirs[None]).float())
            common = (others.argmax(1)[:, None] == theirs[None]).float().mean(0)
        else:
            spread = max(float(others.std()), 1e-6)
            near = (first[:, 0, None] - second[None, :, 0]).abs() / spread
            agreement.append((1 - near).clamp(min=0))
            common = (
                ((others[:, 0, None] - second[None, :, 0]).abs() < 0.5 * spread).float().mean(0)
            )
        weight.append(-torch.log(common.clamp(min=1 / (len(public) + 1))))
    agree, rarity = torch.stack(agreement, dim=-1), torch.stack(weight, dim=-1)
    weighed = (agree * rarity).sum(-1) / (rarity.sum(-1) + _TINY)
    return {"columns": agree.mean(-1), "rare columns": weighed}


def _compare_texts(guesses: Tensor, candidates: Tensor, public: Tensor) -> Table:
    """Share of words in their place, and overlap of words weighed by how rare they are."""
    highest = int(max(values.max() for values in (candidates, public))) + 1
    guesses = torch.where(guesses < highest, guesses, -1).long()
    seen = torch.zeros(highest)
    for text in public:
        seen[text.clamp(min=0).unique()] += 1
    rarity = -torch.log((seen + 1) / (len(public) + 2))
    in_place = (guesses[:, None] == candidates[None]).float().mean(-1)
    first, second = (_count_words(values, highest) for values in (guesses, candidates))
    shared = torch.stack([torch.minimum(row, second) @ rarity for row in first])
    whole = torch.stack([torch.maximum(row, second) @ rarity for row in first])
    return {"places": in_place, "words": shared / (whole + _TINY)}


def _count_words(texts: Tensor, highest: int) -> Tensor:
    counts = torch.zeros(len(texts), highest)
    valid = (texts >= 0).float()
    return counts.scatter_add(1, texts.clamp(min=0).long(), valid)
