"""Sequences of tokens: numbers of words in a vocabulary, which have no size and no distance."""

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
        length: Tokens of one input.
        vocabulary: Number of tokens there are.
        names: What each token stands for, for people to read; without them, numbers are shown.

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

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.length < 1 or self.vocabulary < 2:
            raise InvalidValue(
                f"expected at least one token out of two, got length={self.length!r}, "
                f"vocabulary={self.vocabulary!r}"
            )
        if self.names and len(self.names) != self.vocabulary:
            raise InvalidValue(
                f"expected a name for each of {self.vocabulary} tokens, got {len(self.names)}"
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
        """Leave tokens as they are: the network looks them up."""
        return inputs

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Undo `normalise`."""
        return inputs

    def project(self, inputs: Tensor) -> Tensor:
        """The nearest valid numbers."""
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
        if bool(((inputs < 0) | (inputs >= self.vocabulary)).any()):
            raise InvalidValue(
                f"expected tokens in 0..{self.vocabulary - 1}, got {int(inputs.min())} to "
                f"{int(inputs.max())}; give the domain the vocabulary of the tokeniser"
            )

    def words(self, tokens: Tensor) -> tuple[str, ...]:
        """One input `(L,)` as people read it; a token that is none shows as a gap."""
        return tuple(map(self._word, tokens.tolist()))

    def _word(self, token: int) -> str:
        if not 0 <= token < self.vocabulary:
            return "_"
        return self.names[token] if self.names else str(token)
