"""How the numbers of a metric are read: their unit, and which differences between them matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a metric's numbers mean to people and to a race between attacks; a share by default.

    Args:
        of: What a share is a share of, such as "columns"; empty for decibels.
        inputs: What inputs with such parts are called, such as "tables".
        telling: About where an eye begins to recognise the input.
        loose: The metric that counts the same parts wherever they are; empty if there is none.
        in_order: Whether parts count in their place only.
        beyond_luck: Whether strangers are right in so many parts that a share must exceed theirs.
        highest: From here on, a value only says that the guess is right up to rounding.
        plateau: A doubling of an attack's steps that gains less than this gains nothing.
        misled: Who ignores a defense and gains more than this was only misled by it.
        behind: Who is further behind than this after a round leaves the race.
        spread: Share of their mean by which the scores of people differ, and its limits.
    """

    of: str
    inputs: str = ""
    telling: float
    loose: str = ""
    in_order: bool = True
    beyond_luck: bool = False
    highest: float = 1.0
    plateau: float = 0.01
    misled: float = 0.1
    behind: float = 0.15
    spread: tuple[float, float, float] = (0.0, 0.15, 0.15)


# Where more decibels come back, people differ more.
DECIBELS = Scale(
    of="",
    telling=20.0,
    highest=60.0,
    plateau=0.5,
    misled=3.0,
    behind=3.0,
    spread=(0.12, 2.0, 4.5),
)


@runtime_checkable
class Scaled(Protocol):
    """A metric that judges how much of an input came back."""

    @property
    def scale(self) -> Scale:
        """How to read its numbers."""


def scale_of(metric: object) -> Scale:
    """The scale of a metric; decibels if it has none, as the metric of another package."""
    return metric.scale if isinstance(metric, Scaled) else DECIBELS
