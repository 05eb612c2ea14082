"""Schedules: a factor of the step size or learning rate for each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from seepage.core.errors import require_at_least, require_within


class Schedule(Protocol):
    """A factor for the step size or the learning rate."""

    def __call__(self, step: int, steps: int) -> float:
        """Return the factor at a step (counted from 0) of a run of `steps`."""


@dataclass(frozen=True)
class Constant:
    """The same step size throughout.

    Example:
        >>> Constant()(7, 8)
        1.0
    """

    def __call__(self, step: int, steps: int) -> float:
        """Return one."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class StepDecay:
    """Multiply by `factor` after 3/8, 5/8 and 7/8 of the steps.

    Example:
        >>> [StepDecay()(step, 8) for step in (2, 3)]
        [1.0, 0.1]

    References:
        Geiping et al., 2020, appendix C (geiping2020inverting)
    """

    factor: float = 0.1
    milestones: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)

    def __call__(self, step: int, steps: int) -> float:
        """Count the milestones passed."""
        return float(self.factor ** sum(step >= share * steps for share in self.milestones))


@dataclass(frozen=True, kw_only=True)
class Drops:
    """`StepDecay` with the milestones of training: a tenth after 1/4, 1/2 and 3/4 of the steps.

    In both papers these are 50, 100 and 150 of 200 epochs.

    Args:
        at: Shares of the training after which the learning rate drops.
        factor: The factor of each drop.

    Example:
        >>> [round(Drops()(epoch, 200), 3) for epoch in (0, 50, 199)]
        [1.0, 0.1, 0.001]

    References:
        Huang et al., 2021, Sec. A.1 (huang2021evaluating); Liu et al., 2024 (liu2024systematic)
    """

    at: tuple[float, ...] = (0.25, 0.5, 0.75)
    factor: float = 0.1

    def __call__(self, step: int, steps: int) -> float:
        """Count the drops passed."""
        return StepDecay(factor=self.factor, milestones=self.at)(step, steps)


@dataclass(frozen=True, kw_only=True)
class CosineDecay:
    """Fall from 1 to `floor` along half a cosine wave.

        floor + (1 - floor) (1 + cos(pi step / steps)) / 2

    Example:
        >>> [round(CosineDecay()(step, 4), 3) for step in range(4)]
        [1.0, 0.854, 0.5, 0.146]

    References:
        Loshchilov and Hutter, 2017, Eq. 5 (loshchilov2017sgdr)
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        require_within("[0, 1]", floor=self.floor)

    def __call__(self, step: int, steps: int) -> float:
        """Evaluate the wave."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass(frozen=True)
class LinearDecay:
    """Fall from 1 along a straight line that ends at zero.

        1 - step / steps

    Example:
        >>> [LinearDecay()(step, 4) for step in range(4)]
        [1.0, 0.75, 0.5, 0.25]
    """

    def __call__(self, step: int, steps: int) -> float:
        """Evaluate the line."""
        return 1 - step / steps


@dataclass(frozen=True)
class WarmUp:
    """Rise linearly during the first steps, then follow another schedule over the rest.

    Args:
        schedule: The schedule that follows; its run does not count the warm-up.
        steps: Length of the rise; the last of these steps has the full size.

    Example:
        >>> [WarmUp(Constant(), steps=4)(step, 100) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]

    References:
        Goyal et al., 2017, Sec. 2.2 (goyal2017accurate)
    """

    schedule: Schedule
    steps: int = field(default=50, kw_only=True)

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps)

    def __call__(self, step: int, steps: int) -> float:
        """Rise, then follow the schedule."""
        rest = max(steps - self.steps, 1)
        if step < self.steps:
            return (step + 1) / self.steps * self.schedule(0, rest)
        return self.schedule(step - self.steps, rest)


@dataclass(frozen=True)
class OneCycle:
    """Rise linearly to the full learning rate, then fall linearly to zero.

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
        require_within("[0, 1)", rise=self.rise)

    def __call__(self, step: int, steps: int) -> float:
        """Evaluate the two lines; the factor of the first step is not zero."""
        top = self.rise * steps
        return min((step + 1) / max(top, 1.0), (steps - step) / (steps - top + 1), 1.0)
