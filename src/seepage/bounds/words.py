"""What a bound says when it says nothing."""

from __future__ import annotations

import math

import torch

from seepage.core import Batch, BoundValue
from seepage.core.errors import InvalidValue

# How an assumption begins that makes a bound one of another client than the one attacked.
SEEN_WITH = "the update is seen with noise that the client does not add, of std"


def nothing_said(batch: Batch, reason: str) -> BoundValue:
    """A lower bound of zero for everybody, and why."""
    return BoundValue(torch.zeros(len(batch), dtype=torch.float64), "lower", "rmse", (), reason)


def require_std(std: float) -> None:
    """Refuse noise of no possible scale."""
    if not (std >= 0 and math.isfinite(std)):
        raise InvalidValue(f"expected std >= 0, got {std!r}")
