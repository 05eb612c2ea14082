"""Values as people read them."""

from __future__ import annotations

import math


def defense_words(defense: str) -> str:
    """A defense without the punctuation of the call that made it.

    Example:
        >>> defense_words("chain()")
        'none'
        >>> defense_words("chain(ClipEach(1.0), Mean(), AddGaussian(0.01))")
        'ClipEach(1.0) + Mean + AddGaussian(0.01)'
    """
    if not defense.startswith("chain("):
        return defense.replace("()", "")
    links = defense.removeprefix("chain(").removesuffix(")")
    return links.replace("), ", ") + ").replace("()", "") or "none"


def decibels(value: float | None, *, unit: bool = True) -> str:
    """A PSNR; infinite means exact, and minus infinity that there is none.

    Example:
        >>> decibels(31.25), decibels(math.inf), decibels(None)
        ('31.2 dB', 'exact', '-')
    """
    if value is None or value == -math.inf:
        return "-"
    return "exact" if value == math.inf else f"{value:.1f}{' dB' if unit else ''}"
