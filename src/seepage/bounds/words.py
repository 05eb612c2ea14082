"""What bounds say alike: of what they need, what they assume, and when they say nothing."""

from __future__ import annotations

import math

import torch

from seepage.core import Batch, BoundValue
from seepage.core.errors import InvalidValue

# How an assumption begins that makes a bound one of another client than the one attacked.
SEEN_WITH = "the update is seen with noise that the client does not add, of std"


def nothing_said(batch: Batch, reason: str) -> BoundValue:
    """A lower bound of zero for everybody, and why."""
    nothing = torch.zeros(len(batch), dtype=torch.float64, device="cpu")
    return BoundValue(nothing, "lower", "rmse", (), reason)


def require_radius(radius: float) -> None:
    """Refuse intervals that are empty or wider than the domain."""
    if not 0 < radius <= 1:
        raise InvalidValue(f"expected a radius in (0, 1], got {radius!r}")


def within(radius: float) -> str:
    """Over which inputs a bound is an average, as an assumption."""
    return (
        f"on average over inputs within {radius:g} of the range of these, entry by entry and of "
        "no known structure"
    )


def require_std(std: float) -> None:
    """Refuse noise of no possible scale."""
    if not (std >= 0 and math.isfinite(std)):
        raise InvalidValue(f"expected std >= 0, got {std!r}")
