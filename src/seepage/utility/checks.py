"""What every plan of training must satisfy."""

from __future__ import annotations

import math

from seepage.core.errors import InvalidValue


def whole(name: str, value: int | None, *, at_least: int = 1) -> None:
    """Refuse a number that is given but too small."""
    if value is not None and value < at_least:
        raise InvalidValue(f"expected {name} >= {at_least}, got {value!r}")


def descent(lr: float, momentum: float, weight_decay: float) -> None:
    """Refuse what stochastic gradient descent cannot run with."""
    if not (lr > 0 and math.isfinite(lr)):
        raise InvalidValue(f"expected lr > 0, got {lr!r}")
    if not 0 <= momentum < 1:
        raise InvalidValue(f"expected 0 <= momentum < 1, got {momentum!r}")
    if not (weight_decay >= 0 and math.isfinite(weight_decay)):
        raise InvalidValue(f"expected weight_decay >= 0, got {weight_decay!r}")
