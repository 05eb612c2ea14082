"""What is read of a network once, however many attacks ask for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from seepage.core.errors import NotApplicable
from seepage.core.task import Task

T = TypeVar("T")


def remembered(read: Callable[[Task], T]) -> Callable[[Task], T]:
    """Keep what a function finds in a task, or why it finds nothing, as long as the task lives.

    Large inputs make a probe of the network slow, and a task never changes.
    """
    known: WeakKeyDictionary[Task, T | NotApplicable] = WeakKeyDictionary()

    @wraps(read)
    def find(task: Task) -> T:
        if task not in known:
            try:
                known[task] = read(task)
            except NotApplicable as error:
                known[task] = error.with_traceback(None)
        found = known[task]
        if isinstance(found, NotApplicable):
            raise NotApplicable(*found.args)
        return found

    return find
