"""When a run is long enough for its step to be compiled first."""

from __future__ import annotations

import time

import torch

_FROM, _TO = 5, 30
# Compiling takes about a minute and saves about a third of what is left.
_WORTH_SECONDS = 240.0


class Patience:
    """Times a few steps of a run on a card, and says once whether the rest will take long.

    Args:
        steps: Steps to take in all.
    """

    def __init__(self, steps: int) -> None:
        """Begin before the first step."""
        self._steps = steps
        self._began = 0.0

    def runs_out(self, step: int) -> bool:
        """Whether, at the step where this is decided, the steps left would take too long."""
        if step not in (_FROM, _TO):
            return False
        torch.cuda.synchronize()
        now = time.perf_counter()
        if step == _FROM:
            self._began = now
            return False
        each = (now - self._began) / (_TO - _FROM)
        return each * (self._steps - step) > _WORTH_SECONDS
