"""What defenses share: how they are written, and mostly what they take and give."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, ClassVar

from seepage.core import Lesson, Rng, Task
from seepage.core.protocols import Stage
from seepage.core.update import Granularity


class Link:
    """Abstract: a frozen value that reads like the shortest call that makes it.

    Example:
        >>> from seepage.defenses import Prune
        >>> Prune(0.9), Prune(0.9, scope="update")
        (Prune(0.9), Prune(0.9, scope='update'))
    """

    def __repr__(self) -> str:
        """Write what is positional bare, and the rest where it differs from its default."""
        return f"{type(self).__name__}({', '.join(_arguments(self))})"


class OnAggregate(Link):
    """Abstract: a defense that works on the combined update."""

    consumes: ClassVar[Granularity] = "aggregate"
    produces: ClassVar[Granularity] = "aggregate"


class OnLesson(Link):
    """Abstract: a defense that acts before the update; each says what it does otherwise."""

    stage: ClassVar[Stage]

    def broadcast(self, task: Task) -> Task:
        """The network as it is."""
        return task

    def prepare(self, lesson: Lesson, *, rng: Rng) -> Lesson:
        """What the informed adversary could do as well."""
        return self.rehearse(lesson)

    def rehearse(self, lesson: Lesson) -> Lesson:
        """The lesson as it is."""
        return lesson


def _arguments(value: Any) -> list[str]:  # noqa: ANN401
    pairs = [(f, getattr(value, f.name)) for f in fields(value)]
    return [
        f"{f.name}={item!r}" if f.kw_only else repr(item)
        for f, item in pairs
        if f.default is MISSING or item != f.default
    ]
