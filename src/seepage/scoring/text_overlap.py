"""How much of a text came back, whatever the order or the place of its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Paired
from seepage.domains.tokens import Tokens
from seepage.scoring.accuracy import check_tokens


def list_tokens(paired: Paired, texts: Tensor) -> list[list[int]]:
    """The tokens of each text, without padding and without places that were not guessed."""
    padding = paired.domain.padding if isinstance(paired.domain, Tokens) else None
    return [[t for t in text if t >= 0 and t != padding] for text in texts.tolist()]


@dataclass(frozen=True)
class TokenRecall:
    """Share of a text's different tokens that are among the guesses for the whole batch.

    An update is a sum over the batch, so that an attack may know which words were said, and
    neither by whom nor in which order. NaN for a text without tokens.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> truth = torch.tensor([[4, 8, 8], [1, 5, 6]])
        >>> guess = torch.tensor([[8, 4, 1], [2, 2, 5]])
        >>> TokenRecall()(Paired(truth, guess, torch.tensor([0, 0]), None, (0, 1))).tolist()
        [1.0, 0.6666666666666666]

    References: Gupta et al., 2022 (gupta2022recovering)
    """

    name: ClassVar[str] = "token_recall"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        check_tokens(paired)
        named = {token for text in list_tokens(paired, paired.guess) for token in text}
        said = [set(text) for text in list_tokens(paired, paired.truth)]
        shares = [len(own & named) / len(own) if own else torch.nan for own in said]
        return torch.tensor(shares, dtype=torch.float64)


@dataclass(frozen=True)
class TokenPrecision:
    """Share of the different tokens in all guesses that some text of the batch holds.

    It is the same for everybody in a batch. NaN if nothing was guessed.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> truth, guess = torch.tensor([[4, 8]]), torch.tensor([[8, 1]])
        >>> TokenPrecision()(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [0.5]

    References: Gupta et al., 2022 (gupta2022recovering)
    """

    name: ClassVar[str] = "token_precision"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        check_tokens(paired)
        named, said = (
            {token for text in list_tokens(paired, texts) for token in text}
            for texts in (paired.guess, paired.truth)
        )
        share = len(named & said) / len(named) if named else torch.nan
        return torch.full((len(paired),), share, dtype=torch.float64)


@dataclass(frozen=True)
class RougeL:
    """ROUGE-L: the longest common subsequence of tokens, as an F-score.

        F = 2 LCS(guess, truth) / (|guess| + |truth|)

    Padding and places that were not guessed do not count. NaN for a text without tokens.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> truth, guess = torch.tensor([[4, 8, 1, 5]]), torch.tensor([[4, 1, 5, 9]])
        >>> RougeL()(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [0.75]

    References: Lin, 2004 (lin2004rouge)
    """

    name: ClassVar[str] = "rouge_l"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        check_tokens(paired)
        pairs = zip(
            list_tokens(paired, paired.guess), list_tokens(paired, paired.truth), strict=True
        )
        scores = [
            2 * _longest_common(guess, truth) / (len(guess) + len(truth)) if truth else torch.nan
            for guess, truth in pairs
        ]
        return torch.tensor(scores, dtype=torch.float64)


def _longest_common(one: list[int], other: list[int]) -> int:
    """Length of the longest common subsequence.

    Example:
        >>> _longest_common([1, 2, 3, 4], [2, 4, 3])
        2
    """
    lengths = [0] * (len(other) + 1)
    for token in one:
        before = 0
        for place, candidate in enumerate(other, 1):
            held = lengths[place]
            lengths[place] = (
                before + 1 if token == candidate else max(lengths[place], lengths[place - 1])
            )
            before = held
    return lengths[-1]
