"""Places for names beside marks on a chart, so that none covers another and each finds its mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

LETTER, LINE, DOT = 6.3, 14.0, 4.0
RADII = (11, 18, 27, 38, 52, 68, 86, 106, 130, 160)
ANGLES = [2 * math.pi * i / 24 for i in range(24)]

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


@dataclass(frozen=True)
class Label:
    """A name beside its mark.

    Args:
        text: The name.
        at: Where the mark is.
        box: Where the name is.
    """

    text: str
    at: Spot
    box: Box

    @property
    def leader(self) -> tuple[Spot, Spot]:
        """From beside the mark to what of the name is nearest."""
        (x, y), box = self.at, self.box
        near = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
        share = min(DOT / (math.dist(self.at, near) or 1.0), 1.0)
        return (x + share * (near[0] - x), y + share * (near[1] - y)), near

    def crossings(self, *, boxes: Sequence[Box], leaders: Sequence[Box]) -> int:
        """How much lies between the name and its mark, and how much of other ways it covers."""
        steps = list(boxes_along([self.leader]))
        between = sum(step.meets(box) for step in steps for box in boxes)
        return between + sum(self.box.meets(leader) for leader in leaders)


def placed(marks: Mapping[str, Spot], inside: Box, *, around: Iterable[Box] = ()) -> list[Label]:
    """A place for every name, the nearest that is free, so that no two names or marks overlap.

    Args:
        marks: Where the marks are.
        inside: Where names may be.
        around: What else they must not cover.

    Example:
        >>> a, b = placed({"one": (50.0, 50.0), "two": (50.0, 51.0)}, Box(0, 0, 200, 100))
        >>> a.box.meets(b.box)
        False
    """
    taken = [Box.about(spot, DOT) for spot in marks.values()] + list(around)
    labels: list[Label] = []
    leaders: list[Box] = []
    # Crowded ones first, while there is room near them.
    for text in sorted(marks, key=lambda name: _distance_to_next(name, marks)):
        free = [
            Label(text, marks[text], box)
            for box in _boxes(text, *marks[text])
            if _holds(inside, box) and not any(box.meets(other) for other in taken)
        ]
        if not free:
            raise ValueError(f"no room for the name of {text!r}; make the picture larger")
        others = [box for box in taken if not box.meets(Box.about(marks[text], DOT))]
        label = min(free, key=partial(Label.crossings, boxes=others, leaders=leaders))
        taken.append(label.box)
        leaders += boxes_along([label.leader])
        labels.append(label)
    return labels


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
    for radius in RADII:
        for angle in ANGLES:
            over, down = math.cos(angle), math.sin(angle)
            middle = x + over * (radius + width / 2), y + down * (radius + LINE / 2)
            yield Box(
                middle[0] - width / 2,
                middle[1] - LINE / 2,
                middle[0] + width / 2,
                middle[1] + LINE / 2,
            )


def _holds(outer: Box, inner: Box) -> bool:
    across = outer.left <= inner.left and inner.right <= outer.right
    return across and outer.top <= inner.top and inner.bottom <= outer.bottom


def _distance_to_next(name: str, marks: Mapping[str, Spot]) -> float:
    others = (spot for other, spot in marks.items() if other != name)
    return min((math.dist(marks[name], spot) for spot in others), default=0.0)
