"""Shares of trials that succeeded, with exact confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.core.errors import InvalidValue


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
        if not 0 < self.confidence < 1:
            raise InvalidValue(f"expected confidence in (0, 1), got {self.confidence!r}")

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
