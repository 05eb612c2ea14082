"""How the learning rate changes: a factor for each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from seepage.core.errors import InvalidValue


class Schedule(Protocol):
    """A factor for the learning rate."""

    def __call__(self, step: int, steps: int) -> float:
        """Factor at a step (counted from 0) of a training of `steps`."""


@dataclass(frozen=True)
class Constant:
    """The same learning rate throughout."""

    def __call__(self, step: int, steps: int) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Drops:
    """Multiply the learning rate by `factor` at every share of the training in `at`.

    The default is that of both papers: a tenth after 50, 100 and 150 of 200 epochs.

    Example:
        >>> [round(Drops()(epoch, 200), 3) for epoch in (0, 50, 199)]
        [1.0, 0.1, 0.001]

    References:
        Huang et al., 2021, Sec. A.1 (huang2021evaluating); Liu et al., 2024 (liu2024systematic)
    """

    at: tuple[float, ...] = (0.25, 0.5, 0.75)
    factor: float = 0.1

    def __call__(self, step: int, steps: int) -> float:
        """Count the drops behind."""
        return float(self.factor ** sum(step >= share * steps for share in self.at))


@dataclass(frozen=True)
class OneCycle:
    """Rise to the learning rate along a straight line, then fall to zero along another.

    Args:
        rise: Share of the steps that rise.

    Example:
        >>> [round(OneCycle(0.5)(step, 4), 2) for step in range(4)]
        [0.5, 1.0, 0.67, 0.33]

    References:
        Smith and Topin, 2019 (smith2019super)
    """

    rise: float = field(default=0.3)

    def __post_init__(self) -> None:
        """Check the share."""
        if not 0 <= self.rise < 1:
            raise InvalidValue(f"expected 0 <= rise < 1, got {self.rise!r}")

    def __call__(self, step: int, steps: int) -> float:
        """Read the two lines; the first step already moves."""
        top = self.rise * steps
        return min((step + 1) / max(top, 1.0), (steps - step) / (steps - top + 1), 1.0)
