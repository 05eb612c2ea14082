"""Where a value stands on a chart, in per cent of its width or height."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A linear axis; values beyond its ends are drawn at them.

    Args:
        low: Value at 0 %.
        high: Value at 100 %.
    """

    low: float
    high: float

    def place(self, value: float) -> float:
        """Per cent from the low end.

        Example:
            >>> Axis(0.0, 40.0).place(10.0), Axis(0.0, 40.0).place(math.inf)
            (25.0, 100.0)
        """
        inside = min(max(value, self.low), self.high)
        return round(100 * (inside - self.low) / (self.high - self.low), 2)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside the axis, about `count` of them.

        Example:
            >>> Axis(0.0, 47.0).ticks()
            [0.0, 10.0, 20.0, 30.0, 40.0]
        """
        step = _nice((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(index * step, 10) for index in range(first, last + 1)]


def spanning(values: Iterable[float], *, room: float = 0.05) -> Axis:
    """An axis that holds all finite values, with a little room at both ends."""
    finite: Sequence[float] = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    spare = room * (high - low) or 1.0
    return Axis(low - spare, high + spare)


def _nice(step: float) -> float:
    scale = 10.0 ** math.floor(math.log10(step))
    return next(scale * nice for nice in (1, 2, 5, 10) if scale * nice >= step * 0.999)
