"""Statistics of tests: exact rates, p-values from strangers, likelihood ratios from rehearsals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue, require_within


@dataclass(frozen=True)
class Rate:
    """So many successes in so many trials, with the interval of Clopper and Pearson.

    Args:
        successes: How many trials succeeded.
        trials: How many there were.
        confidence: Probability with which the interval holds the true share.

    Example:
        >>> print(Rate(0, 100))
        0.0 % [0.0, 3.6]
        >>> Rate(3, 4).value
        0.75

    References:
        Clopper and Pearson, 1934 (clopper1934use)
    """

    successes: int
    trials: int
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.trials or self.trials < 1:
            raise InvalidValue(
                f"expected 0 <= successes <= trials and a trial, got {self.successes} of "
                f"{self.trials}"
            )
        require_within("(0, 1)", confidence=self.confidence)

    @property
    def value(self) -> float:
        """The share."""
        return self.successes / self.trials

    @property
    def low(self) -> float:
        """Lower end of the two-sided interval."""
        return lower_limit(self.successes, self.trials, (1 - self.confidence) / 2)

    @property
    def high(self) -> float:
        """Upper end of the two-sided interval."""
        return upper_limit(self.successes, self.trials, (1 - self.confidence) / 2)

    def plain(self) -> dict[str, object]:
        """The counts and the interval as data that JSON can hold."""
        return {"found": self.successes, "of": self.trials, "interval": [self.low, self.high]}

    def __str__(self) -> str:
        """In per cent, with the interval."""
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def lower_limit(successes: int, trials: int, error: float) -> float:
    """The share below which the true one is with probability at most `error`.

    Example:
        >>> round(lower_limit(10, 10, 0.05), 4)
        0.7411
    """
    from scipy.special import betaincinv

    return float(betaincinv(successes, trials - successes + 1, error)) if successes else 0.0


def upper_limit(successes: int, trials: int, error: float) -> float:
    """The share above which the true one is with probability at most `error`."""
    return 1 - lower_limit(trials - successes, trials, error)


def conformal_p_values(scores: Tensor, strangers: Tensor) -> Tensor:
    """The share of strangers, the candidate among them, that score at least as high.

        p = (1 + #{strangers with a score >= s}) / (n + 1)

    If a candidate who is not a member is exchangeable with the strangers, given the update, then
    P(p <= a) <= a for every a, whatever the score is.

    Args:
        scores: Of the candidates, `(N,)`.
        strangers: Scores of public inputs on the same update, `(n,)`.

    Example:
        >>> conformal_p_values(torch.tensor([9.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])).tolist()
        [0.25, 0.75]

    References:
        Vovk et al., 2005 (vovk2005algorithmic)
    """
    ordered = strangers.double().sort().values
    above = len(ordered) - torch.searchsorted(ordered, scores.double().contiguous())
    return (1 + above.double()) / (len(ordered) + 1)


def monotone_likelihood_ratios(scores: Tensor, members: Tensor, strangers: Tensor) -> Tensor:
    """How much likelier each score is for a member than for a stranger, rising with the score.

    Rehearsed members and strangers are pooled by score until the share of members rises from block
    to block. Half a person is added to both counts of a block, so that no ratio says more than the
    number of rehearsed people supports.

    Args:
        scores: Of the candidates, `(N,)`.
        members: Scores of rehearsed members, `(m,)`.
        strangers: Scores of rehearsed non-members, `(n,)`.

    Example:
        >>> low, high = torch.arange(0.0, 50), torch.arange(100.0, 150)
        >>> monotone_likelihood_ratios(torch.tensor([20.0, 120.0]), high, low).round().tolist()
        [0.0, 101.0]

    References:
        Ayer et al., 1955 (ayer1955empirical)
    """
    both = torch.cat([members, strangers]).double()
    is_member = torch.cat([torch.ones(len(members)), torch.zeros(len(strangers))]).double()
    levels, place = torch.unique(both, return_inverse=True)
    inside = torch.zeros(len(levels), dtype=torch.float64).index_add_(0, place, is_member)
    outside = torch.zeros(len(levels), dtype=torch.float64).index_add_(0, place, 1 - is_member)
    blocks: list[tuple[float, float, float]] = []
    for start, new, old in zip(levels.tolist(), inside.tolist(), outside.tolist(), strict=True):
        block = (start, new, old)
        while blocks and blocks[-1][1] * (block[1] + block[2]) >= block[1] * sum(blocks[-1][1:]):
            before = blocks.pop()
            block = (before[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    starts = torch.tensor([block[0] for block in blocks], dtype=torch.float64)
    ratios = torch.tensor(
        [
            ((k + 0.5) / (len(members) + 1)) / ((n + 0.5) / (len(strangers) + 1))
            for _, k, n in blocks
        ],
        dtype=torch.float64,
    )
    # Half a person moves small blocks more than large ones.
    ratios = ratios.cummax(0).values
    found = torch.searchsorted(starts, scores.double().contiguous(), right=True) - 1
    return ratios[found.clamp_min(0)]


def evidence(members: Tensor, strangers: Tensor) -> float:
    """Mean log10(1 / p) of members against strangers: how much a score tells, at low error too.

    Example:
        >>> evidence(torch.full((5,), 3.0), torch.zeros(9))
        1.0
    """
    return float(-conformal_p_values(members, strangers).log10().mean())
