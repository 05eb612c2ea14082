"""Sequences of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.errors import InvalidValue


@dataclass(frozen=True)
class Tokens:
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
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, `(L,)`."""
        return (self.length,)

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest token."""
        return 0.0, float(self.vocabulary - 1)

    def normalise(self, inputs: Tensor) -> Tensor:
        """Keep the tokens: the network looks them up."""
        return inputs

    denormalise = normalise

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

    def words(self, tokens: Tensor) -> tuple[str, ...]:
        """The words of one input `(L,)`; a number outside the vocabulary shows as "_"."""
        shown = self.names or range(self.vocabulary)
        return tuple(str(shown[t]) if 0 <= t < self.vocabulary else "_" for t in tokens.tolist())
