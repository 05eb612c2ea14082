"""Step-size schedules: a factor for each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A factor for the step size."""

    def __call__(self, step: int, steps: int) -> float:
        """Factor at a step (counted from 0) of a run of `steps`."""


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
        """Count the milestones behind."""
        return float(self.factor ** sum(step >= share * steps for share in self.milestones))
