"""How much came back, by the measure that tells most about the kind of input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seepage.report.words import decibels

# Of tables and texts PSNR says little: it would compare codes of answers and numbers of words.
_SHARES: Mapping[str, str] = {"feature_accuracy": "columns", "token_accuracy": "words"}


@dataclass(frozen=True)
class Amount:
    """A score by the measure of its kind of input.

    Args:
        metric: Its name.
        value: What it says.

    Example:
        >>> Amount("psnr", 31.25).words(), Amount("feature_accuracy", 0.8).words()
        ('31.2 dB', '80 % of the columns')
    """

    metric: str
    value: float | None

    def words(self, *, unit: bool = True) -> str:
        """For people, with the unit or as short as a table has it; "-" where there is none."""
        if self.metric not in _SHARES:
            return decibels(self.value, unit=unit)
        if self.value is None or self.value < 0:
            return "-"
        return f"{100 * self.value:.0f} %" + f" of the {_SHARES[self.metric]}" * unit


def headline(scores: Mapping[str, object]) -> str:
    """The measure to show of these scores: the share that is right of tables and texts, or PSNR.

    Example:
        >>> headline({"psnr": (9.0,), "token_accuracy": (1.0,)}), headline({"psnr": (9.0,)})
        ('token_accuracy', 'psnr')
    """
    return next((metric for metric in _SHARES if metric in scores), "psnr")
