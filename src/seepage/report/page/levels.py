"""How a level looks: warm where something leaked, calm where nothing did."""

from __future__ import annotations

from seepage.report.leak import Attempt, Level
from seepage.report.page.markup import Markup, element

_CLASSES = {Level.recognisable: "leak", Level.partial: "trace", Level.hidden: "safe"}


def level_class(level: Level | None) -> str:
    """The class that colours it."""
    return "none" if level is None else _CLASSES[level]


def badge(level: Level) -> Markup:
    """The level as a word in its colour."""
    return element("span", {"class": f"badge {level_class(level)}"}, str(level))


def amount(attempt: Attempt) -> str:
    """What came back, in a few characters.

    Exact means that the guess rounds to the same 8-bit input.
    """
    return "exact" if attempt.score("exact") else attempt.amount.words()
