"""Sequences of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from seepage.core import Domain, Rng
from seepage.core._likeness import TINY, Exactness, Likeness, Measure, Table
from seepage.core.errors import InvalidValue


@dataclass(frozen=True)
class Tokens(Domain):
    """Sequences `(L,)` of whole numbers below the size of the vocabulary, as int64.

    Args:
        length: Number of tokens in one input.
        vocabulary: Number of different tokens.
        names: The word of each token, for display; without names, numbers are shown.
        padding: The token that fills short texts up, if there is one. It tells nothing about
            anybody, so scores leave it out.

    Example:
        >>> greeting = Tokens(2, 3, names=("good", "night", "morrow"))
        >>> greeting.words(torch.tensor([0, 2]))
        ('good', 'morrow')
        >>> greeting.sample(4, rng=Rng(0)).dtype
        torch.int64
    """

    kind = "texts"
    measure = "token_accuracy"
    discrete = True

    length: int
    vocabulary: int
    names: tuple[str, ...] = field(default=(), repr=False)
    padding: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.length < 1 or self.vocabulary < 2:
            raise InvalidValue(
                f"expected at least one token out of two, got length={self.length!r}, "
                f"vocabulary={self.vocabulary!r}"
            )
        if self.names and len(self.names) != self.vocabulary:
            raise InvalidValue(
                f"expected a name for each of {self.vocabulary} tokens, got {len(self.names)}"
            )
        if self.padding is not None and not 0 <= self.padding < self.vocabulary:
            raise InvalidValue(
                f"expected padding in 0..{self.vocabulary - 1}, got {self.padding!r}"
            )

    @cached_property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one input, `(L,)`."""
        return (self.length,)

    @property
    def bounds(self) -> tuple[float, float]:  # type: ignore[override]
        """The lowest and the highest token."""
        return 0.0, float(self.vocabulary - 1)

    def project(self, inputs: Tensor) -> Tensor:
        """Round to the nearest tokens."""
        return inputs.round().clamp(*self.bounds).long()

    def sample(self, size: int, *, rng: Rng) -> Tensor:
        """Draw tokens uniformly, `(size, L)`."""
        return (rng.uniform((size, self.length)) * self.vocabulary).long()

    def check(self, inputs: Tensor) -> None:
        """Raise `InvalidValue` unless these are tokens `(B, L)` of the vocabulary."""
        if inputs.dtype != torch.int64 or tuple(inputs.shape[1:]) != self.shape:
            raise InvalidValue(
                f"expected tokens (B, {self.length}) as int64, got {inputs.dtype} "
                f"{tuple(inputs.shape)}; cut or fill the sequences to one length"
            )
        if bool((outside := (inputs < 0) | (inputs >= self.vocabulary)).any()):
            raise InvalidValue(
                f"expected tokens in 0..{self.vocabulary - 1}, got {int(outside.sum())} of "
                f"{outside.numel()} outside; give the domain the vocabulary of the tokeniser"
            )

    def is_known(self, inputs: Tensor) -> bool:
        """Whether no word is missing: that is -1, which no network reads."""
        return not bool((inputs < 0).any())

    def subtract(self, guess: Tensor, truth: Tensor) -> Tensor:
        """1.0 where words differ: how far apart their numbers are means nothing."""
        return (guess != truth).double()

    def typical(self, inputs: Tensor) -> Tensor:
        """The most frequent word at each place."""
        return torch.mode(inputs, dim=0).values

    def exactness(self, others: Tensor, *, synthetic: bool = False) -> Exactness:
        """Every word must be right; padding is no word."""
        return _SameWords(self.padding)

    def likeness(self, others: Tensor) -> Likeness:
        """Words in their place, and words in any order weighed by how rare they are."""
        return _WordLikeness(_find_rarity(others), self.padding)

    def words(self, tokens: Tensor) -> tuple[str, ...]:
        """The words of one input `(L,)`; a number outside the vocabulary shows as "_"."""
        shown = self.names or range(self.vocabulary)
        return tuple(str(shown[t]) if 0 <= t < self.vocabulary else "_" for t in tokens.tolist())


@dataclass(frozen=True)
class _SameWords(Exactness):
    """When a text is exact."""

    padding: int | None

    def compare(self, guess: Tensor, candidates: Tensor) -> Tensor:
        """Whether a guess is each of the candidates `(C, L)`."""
        wrong = guess != candidates
        if self.padding is not None:
            wrong = wrong & (candidates != self.padding)
        return ~wrong.flatten(1).any(1)


@dataclass(frozen=True, eq=False)
class _WordLikeness(Likeness):
    """Texts, compared word by word."""

    rarity: Tensor
    padding: int | None
    # Most texts share no word, so that one word in the same place by chance would stand out. All
    # words in no order tell as much as half of them in their place.
    measures = dict.fromkeys(("places", "words"), Measure(least=0.05, enough=(0.5, 0.5)))

    def table(self, guesses: Tensor, candidates: Tensor) -> Table:
        """Share of words in their place, and overlap of words weighed by how rare they are.

        Padding is no word: by that alone whoever wrote a short text would stand out.
        """
        if self.padding is not None:
            guesses, candidates = (
                t.masked_fill(t == self.padding, -1) for t in (guesses, candidates)
            )
        known = len(self.rarity)
        highest = max(known, int(candidates.max()) + 1)
        unseen = self.rarity.new_full((highest - known,), float(self.rarity.max()))
        weights = torch.cat([self.rarity, unseen])
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
        return {"places": in_place, "words": overlap / (whole + TINY)}


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
