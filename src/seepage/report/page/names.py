"""Where the names of marks stand on a chart, so that all of them can be read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Spot = tuple[float, float]

# Of letters of 12 pixels: the width of one, and the height of a line.
LETTER, LINE = 6.3, 14.0
# From this far on a line leads from a mark to its name.
FAR = 14.0
_RADII = (11, 18, 27, 38, 52, 68, 86, 106, 130, 160)
_ANGLES = [2 * math.pi * i / 16 for i in range(16)]


@dataclass(frozen=True)
class Box:
    """A rectangle, in the units of the picture; downwards is more."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, inner: Box) -> bool:
        """Whether all of another is inside."""
        across = self.left <= inner.left and inner.right <= self.right
        return across and self.top <= inner.top and inner.bottom <= self.bottom

    def nearest(self, spot: Spot) -> Spot:
        """The point of it that is closest to a spot."""
        x, y = spot
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


@dataclass(frozen=True)
class Name:
    """A name beside its mark.

    Args:
        text: The name.
        at: Where the mark is.
        box: Where the name is.
        alone: Whether no other mark is closer to it.
    """

    text: str
    at: Spot
    box: Box
    alone: bool

    @property
    def leader(self) -> tuple[Spot, Spot] | None:
        """The line from the mark to its name, where it is not plain that they belong together."""
        near = self.box.nearest(self.at)
        return None if self.alone and math.dist(self.at, near) <= FAR else (self.at, near)


def placed(
    named: Sequence[tuple[str, Spot]], inside: Box, *, dot: float, others: Sequence[Spot] = ()
) -> list[Name]:
    """A place for every name, the nearest that is free, so that no two names or marks overlap.

    A name for which there is no room near its mark is left out.

    Args:
        named: Names and where their marks are.
        inside: Where names may stand.
        dot: Radius of a mark.
        others: Marks without a name, which names must not cover either.

    Example:
        >>> marks = [("one", (50.0, 50.0)), ("two", (50.0, 51.0))]
        >>> a, b = placed(marks, Box(0, 0, 200, 100), dot=4.0)
        >>> a.box.meets(b.box)
        False
    """
    spots = [*(spot for _, spot in named), *others]
    taken = [Box(x - dot, y - dot, x + dot, y + dot) for x, y in spots]
    names: list[Name] = []
    # Crowded ones first, while there is room near them.
    for index in sorted(range(len(named)), key=lambda i: _distance_to_next(i, spots)):
        text, at = named[index]
        free = [
            Name(text, at, box, _alone(box, at, spots))
            for box in _boxes(text, at)
            if inside.holds(box) and not any(box.meets(other) for other in taken)
        ]
        # The sort is stable: of those that are as plain, the nearest.
        for name in sorted(free, key=lambda name: name.leader is not None)[:1]:
            taken.append(name.box)
            names.append(name)
    return names


def _alone(box: Box, at: Spot, spots: Sequence[Spot]) -> bool:
    own = math.dist(box.nearest(at), at)
    return all(own <= math.dist(box.nearest(spot), spot) for spot in spots)


def _boxes(text: str, at: Spot) -> Iterator[Box]:
    """Places for a name around its mark, the nearest first."""
    half = (LETTER * len(text) + 2) / 2
    for radius in _RADII:
        for angle in _ANGLES:
            x = at[0] + math.cos(angle) * (radius + half)
            y = at[1] + math.sin(angle) * (radius + LINE / 2)
            yield Box(x - half, y - LINE / 2, x + half, y + LINE / 2)


def _distance_to_next(index: int, spots: Sequence[Spot]) -> float:
    others = (spot for other, spot in enumerate(spots) if other != index)
    return min((math.dist(spots[index], spot) for spot in others), default=0.0)
