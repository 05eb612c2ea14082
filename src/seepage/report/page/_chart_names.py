"""Places for the names of marks in a chart, so that no two overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

# Width of a letter and height of a line, in a font of 12 pixels.
LETTER, LINE = 7.1, 14.0
# A name further than this from its mark is joined to it by a line.
NEXT_TO = 8.0
_RADII = (11, 18, 27, 38, 52, 68, 86, 106, 130, 160)
_ANGLES = [2 * math.pi * i / 24 for i in range(24)]

Spot = tuple[float, float]


@dataclass(frozen=True)
class LabelBox:
    """A rectangle, in the units of the picture."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def about(cls, spot: Spot, reach: float) -> LabelBox:
        """A square with this centre."""
        x, y = spot
        return cls(x - reach, y - reach, x + reach, y + reach)

    def meets(self, other: LabelBox) -> bool:
        """Whether the two overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def nearest(self, spot: Spot) -> Spot:
        """The point of the rectangle that is nearest to a spot."""
        x, y = spot
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def holds(self, inner: LabelBox) -> bool:
        """Whether another rectangle lies inside."""
        across = self.left <= inner.left and inner.right <= self.right
        return across and self.top <= inner.top and inner.bottom <= self.bottom


@dataclass(frozen=True)
class Name:
    """A name in its box near a mark of radius `dot`; `closest` if no other mark is closer."""

    text: str
    at: Spot
    box: LabelBox
    dot: float
    closest: bool

    @property
    def leader(self) -> tuple[Spot, Spot]:
        """The line from the edge of the mark to the nearest point of the name."""
        (x, y), near = self.at, self.box.nearest(self.at)
        share = min(self.dot / (math.dist(self.at, near) or 1.0), 1.0)
        return (x + share * (near[0] - x), y + share * (near[1] - y)), near

    @property
    def apart(self) -> bool:
        """Whether a reader could take the name for another mark's; the leader is then drawn."""
        return not self.closest or math.dist(*self.leader) > NEXT_TO

    def crossings(self, *, boxes: Sequence[LabelBox], leaders: Sequence[LabelBox]) -> int:
        """How many boxes the leader crosses, and how many other leaders the name covers."""
        steps = list(boxes_along([self.leader]))
        between = sum(step.meets(box) for step in steps for box in boxes)
        return between + sum(self.box.meets(leader) for leader in leaders)


def place_names(
    marks: Mapping[str, Spot], inside: LabelBox, *, dot: float, around: Iterable[LabelBox] = ()
) -> list[Name]:
    """Place every name near its mark so that no two names or marks overlap.

    Marks have the radius `dot`. Names stay `inside` and do not cover what is `around`. A name with
    no free place near its mark is left out.

    Example:
        >>> marks = {"one": (50.0, 50.0), "two": (50.0, 51.0)}
        >>> a, b = place_names(marks, LabelBox(0, 0, 200, 100), dot=4.0)
        >>> a.box.meets(b.box)
        False
    """
    taken = [LabelBox.about(spot, dot) for spot in marks.values()] + list(around)
    names: list[Name] = []
    leaders: list[LabelBox] = []
    # Crowded marks first, while there is room near them.
    for text in sorted(marks, key=lambda name: _distance_to_next(name, marks)):
        free = [
            Name(text, marks[text], box, dot, _is_closest(marks[text], box, marks.values()))
            for box in _list_boxes(text, *marks[text])
            if inside.holds(box) and not any(box.meets(other) for other in taken)
        ]
        if not free:
            continue
        others = [box for box in taken if not box.meets(LabelBox.about(marks[text], dot))]
        name = min(free, key=partial(Name.crossings, boxes=others, leaders=leaders))
        taken.append(name.box)
        leaders += boxes_along([name.leader])
        names.append(name)
    return names


def _is_closest(at: Spot, box: LabelBox, spots: Iterable[Spot]) -> bool:
    own = math.dist(at, box.nearest(at))
    return all(own <= math.dist(spot, box.nearest(spot)) for spot in spots)


def boxes_along(lines: Iterable[tuple[Spot, Spot]]) -> Iterator[LabelBox]:
    """Cover lines by small squares."""
    for start, end in lines:
        count = max(int(math.dist(start, end) / 4), 1)
        for i in range(count + 1):
            x, y = (a + (b - a) * i / count for a, b in zip(start, end, strict=True))
            yield LabelBox.about((x, y), 2.0)


def _list_boxes(text: str, x: float, y: float) -> Iterator[LabelBox]:
    """Places for a name around its mark, the nearest first."""
    width = LETTER * len(text) + 2
    for radius in _RADII:
        for angle in _ANGLES:
            over, down = math.cos(angle), math.sin(angle)
            mid, level = x + over * (radius + width / 2), y + down * (radius + LINE / 2)
            yield LabelBox(mid - width / 2, level - LINE / 2, mid + width / 2, level + LINE / 2)


def _distance_to_next(name: str, marks: Mapping[str, Spot]) -> float:
    others = (spot for other, spot in marks.items() if other != name)
    return min((math.dist(marks[name], spot) for spot in others), default=0.0)
