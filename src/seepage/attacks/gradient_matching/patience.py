"""When a run is long enough for its step to be compiled first."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_FROM, _TO = 5, 30
# Compiling takes one to two minutes and saves about a third of what is left.
_WORTH_SECONDS = 300.0


def settled() -> float:
    """The time once a card has done all it was told to."""
    torch.cuda.synchronize()
    return time.perf_counter()


class Patience:
    """Times a few steps of a run, and says once whether the rest will take long.

    Args:
        steps: Steps to take in all.
        clock: Seconds, when all steps so far are done.
    """

    def __init__(self, steps: int, clock: Callable[[], float] = settled) -> None:
        """Begin before the first step."""
        self._steps, self._clock = steps, clock
        self._began = 0.0

    def runs_out(self, step: int) -> bool:
        """Whether, at the step where this is decided, the steps left would take too long."""
        if step == _FROM:
            self._began = self._clock()
        if step != _TO:
            return False
        each = (self._clock() - self._began) / (_TO - _FROM)
        return each * (self._steps - step) > _WORTH_SECONDS
