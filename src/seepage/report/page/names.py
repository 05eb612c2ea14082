"""Places for names beside marks on a chart, so that none covers another and each finds its mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

# Of letters of 12 pixels: the width of one, and the height of a line.
LETTER, LINE = 6.3, 14.0
# Beyond this a name is not next to its mark, and a line leads to it.
NEXT_TO = 8.0
_RADII = (11, 18, 27, 38, 52, 68, 86, 106, 130, 160)
_ANGLES = [2 * math.pi * i / 24 for i in range(24)]

Spot = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle, in the units of the picture."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def about(cls, spot: Spot, reach: float) -> Box:
        """A square with this middle."""
        (x, y) = spot
        return cls(x - reach, y - reach, x + reach, y + reach)

    def moved(self, down: float) -> Box:
        """The same, further down."""
        return Box(self.left, self.top + down, self.right, self.bottom + down)

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def nearest(self, spot: Spot) -> Spot:
        """The point of it that is nearest to a spot."""
        (x, y) = spot
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def holds(self, inner: Box) -> bool:
        """Whether all of another is inside."""
        across = self.left <= inner.left and inner.right <= self.right
        return across and self.top <= inner.top and inner.bottom <= self.bottom


@dataclass(frozen=True)
class Name:
    """A name beside its mark.

    Args:
        text: The name.
        at: Where the mark is.
        box: Where the name is.
        dot: Radius of the mark.
        closest: Whether no other mark is closer to the name.
    """

    text: str
    at: Spot
    box: Box
    dot: float
    closest: bool

    @property
    def leader(self) -> tuple[Spot, Spot]:
        """From beside the mark to what of the name is nearest."""
        (x, y), near = self.at, self.box.nearest(self.at)
        share = min(self.dot / (math.dist(self.at, near) or 1.0), 1.0)
        return (x + share * (near[0] - x), y + share * (near[1] - y)), near

    @property
    def apart(self) -> bool:
        """Whether the name might be taken for another mark's, so that the leader is drawn."""
        return not self.closest or math.dist(*self.leader) > NEXT_TO

    def crossings(self, *, boxes: Sequence[Box], leaders: Sequence[Box]) -> int:
        """How much lies between the name and its mark, and how much of other ways it covers."""
        steps = list(boxes_along([self.leader]))
        between = sum(step.meets(box) for step in steps for box in boxes)
        return between + sum(self.box.meets(leader) for leader in leaders)


def placed(
    marks: Mapping[str, Spot], inside: Box, *, dot: float, around: Iterable[Box] = ()
) -> list[Name]:
    """A place for every name, the nearest that is free, so that no two names or marks overlap.

    A name for which there is no room near its mark is left out.

    Args:
        marks: Where the marks are.
        inside: Where names may be.
        dot: Radius of a mark.
        around: What else they must not cover.

    Example:
        >>> marks = {"one": (50.0, 50.0), "two": (50.0, 51.0)}
        >>> a, b = placed(marks, Box(0, 0, 200, 100), dot=4.0)
        >>> a.box.meets(b.box)
        False
    """
    taken = [Box.about(spot, dot) for spot in marks.values()] + list(around)
    names: list[Name] = []
    leaders: list[Box] = []
    # Crowded ones first, while there is room near them.
    for text in sorted(marks, key=lambda name: _distance_to_next(name, marks)):
        free = [
            Name(text, marks[text], box, dot, _closest(marks[text], box, marks.values()))
            for box in _boxes(text, *marks[text])
            if inside.holds(box) and not any(box.meets(other) for other in taken)
        ]
        if not free:
            continue
        others = [box for box in taken if not box.meets(Box.about(marks[text], dot))]
        name = min(free, key=partial(Name.crossings, boxes=others, leaders=leaders))
        taken.append(name.box)
        leaders += boxes_along([name.leader])
        names.append(name)
    return names


def _closest(at: Spot, box: Box, spots: Iterable[Spot]) -> bool:
    own = math.dist(at, box.nearest(at))
    return all(own <= math.dist(spot, box.nearest(spot)) for spot in spots)


def boxes_along(lines: Iterable[tuple[Spot, Spot]]) -> Iterator[Box]:
    """Lines, as a row of small squares."""
    for start, end in lines:
        count = max(int(math.dist(start, end) / 4), 1)
        for i in range(count + 1):
            x, y = (a + (b - a) * i / count for a, b in zip(start, end, strict=True))
            yield Box.about((x, y), 2.0)


def _boxes(text: str, x: float, y: float) -> Iterator[Box]:
    """Places for a name around its mark, the nearest first."""
    width = LETTER * len(text) + 2
    for radius in _RADII:
        for angle in _ANGLES:
            over, down = math.cos(angle), math.sin(angle)
            middle = x + over * (radius + width / 2), y + down * (radius + LINE / 2)
            yield Box(
                middle[0] - width / 2,
                middle[1] - LINE / 2,
                middle[0] + width / 2,
                middle[1] + LINE / 2,
            )


def _distance_to_next(name: str, marks: Mapping[str, Spot]) -> float:
    others = (spot for other, spot in marks.items() if other != name)
    return min((math.dist(marks[name], spot) for spot in others), default=0.0)
