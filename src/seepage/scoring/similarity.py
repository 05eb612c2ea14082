"""How alike a guess and a candidate look, forgiving what an eye forgives.

Each measure gives a table of similarities between guesses and candidates, 1 for what looks the
same. Images and signals are compared in all their views, under small shifts and inverted. Rows of a
table and texts have measures of their own, which weigh rare values more.

No learned network is among them: a verdict must not depend on which weights are installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from seepage.core import Domain
from seepage.domains.tabular import Tabular
from seepage.domains.tokens import Tokens
from seepage.scoring.picture_views import Features, Frame, View, embed_pictures, show_pictures

Table = Mapping[str, Tensor]
_Measure = Callable[[Tensor, Tensor], Tensor]
_SHIFT = 2
_TINY = 1e-12
# What varies less, as a share of the contrast of the whole input, is one shade: the correlation
# of rounding errors would be as large as any.
_FLAT = 1e-3


@dataclass(frozen=True, eq=False)
class Similarity:
    """The measures for one kind of input.

    Args:
        public: Inputs of other people, which tell how rare a value is.
        domain: What an input is; tells the columns of a table and the padding of texts.

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
        return embed_pictures(candidates) if self._pictures else {"inputs": candidates}

    def show(self, guesses: Tensor) -> tuple[View, ...]:
        """Guesses `(G, ...)` in every way in which `compare` looks at them, as they are first."""
        guesses = guesses.detach().cpu()
        return show_pictures(guesses) if self._pictures else (View({"inputs": guesses}),)

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
            padding = self.domain.padding if isinstance(self.domain, Tokens) else None
            return _compare_texts(guesses, candidates, self._rarity, padding)
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
    lengths = first.norm(dim=1)[:, None] * second.norm(dim=1)[None] + _TINY
    alike: Tensor = first @ second.T / lengths
    return alike


_MEASURES: Mapping[str, _Measure] = {
    **dict.fromkeys(("pixels", "coarse pixels", "coarsest pixels"), _correlate),
    # Of a signal as it is: the best there is against normal noise.
    "samples": lambda guesses, candidates: (_unit(guesses) @ _unit(candidates).T).abs(),
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


def _compare_texts(
    guesses: Tensor, candidates: Tensor, rarity: Tensor, padding: int | None
) -> Table:
    """Share of words in their place, and overlap of words weighed by how rare they are.

    Padding is no word: by that alone whoever wrote a short text would stand out.
    """
    if padding is not None:
        guesses, candidates = (t.masked_fill(t == padding, -1) for t in (guesses, candidates))
    highest = max(len(rarity), int(candidates.max()) + 1)
    weights = torch.cat([rarity, rarity.new_full((highest - len(rarity),), float(rarity.max()))])
    guesses = torch.where(guesses < highest, guesses, -1).long()
    agree = (guesses[:, None] == candidates[None]) & (guesses[:, None] >= 0)
    lengths = torch.maximum((guesses >= 0).sum(1)[:, None], (candidates >= 0).sum(1)[None])
    in_place = agree.sum(-1) / lengths.clamp(min=1)
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
