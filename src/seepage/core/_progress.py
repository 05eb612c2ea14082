"""Progress of long work, without a parameter in every signature.

An attack calls `report`; a display listens. It costs nothing if nobody listens.

Example:
    >>> with listen(lambda step, total, objective: print(step, "of", total, objective)):
    ...     report(1, 2, 0.5)
    1 of 2 0.5

Long work also has a limit of time, and asks how much is left:

    >>> with limited(0.0):
    ...     time_left() <= 0
    True

Work of several runs, such as restarts one after the other, counts as one with `spanning`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass

from seepage.core.errors import NotApplicable

Listener = Callable[[int, int, float], None]

_listener: ContextVar[Listener | None] = ContextVar("seepage_progress", default=None)
_stage: ContextVar[str] = ContextVar("seepage_stage", default="")
_ends: ContextVar[float] = ContextVar("seepage_ends", default=math.inf)
_spanned: ContextVar[bool] = ContextVar("seepage_spanned", default=False)


def report(step: int, total: int, objective: float) -> None:
    """Say that `step` of `total` steps are done, at this objective.

    Raises:
        NotApplicable: The time is over; work that has something to show ends before it reports.
    """
    if time_left() <= 0:
        raise NotApplicable("it takes longer than the time it is given; give more seconds")
    listener = _listener.get()
    if listener is not None:
        listener(step, total, objective)


def time_left() -> float:
    """Seconds until the time is over; infinite without a limit."""
    return _ends.get() - time.perf_counter() if _ends.get() < math.inf else math.inf


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Let work inside end after so many seconds, or when the time outside is over.

    Example:
        >>> with limited(60.0), limited(600.0):
        ...     50 < time_left() <= 60
        True
    """
    ends = math.inf if seconds is None else time.perf_counter() + seconds
    token = _ends.set(min(_ends.get(), ends))
    try:
        yield
    finally:
        _ends.reset(token)


def has_listener() -> bool:
    """Whether anybody listens."""
    return _listener.get() is not None


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Hear every report made inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def spanning(total: int) -> Iterator[None]:
    """Count the runs inside the block as one of `total` steps; the outermost block counts.

    Example:
        >>> with listen(lambda step, total, _: print(step, "of", total)), spanning(4):
        ...     report(2, 2, 0.5)
        ...     report(1, 2, 0.5)
        2 of 4
        3 of 4
    """
    listener = _listener.get()
    if listener is None or _spanned.get():
        yield
        return
    done, last, size = 0, 0, 0

    def count(step: int, steps: int, objective: float) -> None:
        nonlocal done, last, size
        if step < last:
            done += size
        last, size = step, steps
        listener(min(done + step, total), total, objective)

    token = _spanned.set(True)
    try:
        with listen(count):
            yield
    finally:
        _spanned.reset(token)


def stage() -> str:
    """What is being done, for a display; empty if nobody says."""
    return _stage.get()


@contextmanager
def staged(name: str) -> Iterator[None]:
    """Say what is done inside the block."""
    token = _stage.set(name)
    try:
        yield
    finally:
        _stage.reset(token)


# A search is timed for so many steps, or for so long if they are slow.
_TIMED_STEPS, _TIMED_SECONDS = 3, 5.0


class _Enough(BaseException):
    """Stops a search that has shown how fast it is; `except Exception` does not catch it."""


@dataclass(frozen=True)
class Pace:
    """How fast a search is.

    Args:
        start: Seconds until its first step is done, with all that it prepares.
        each: Seconds of every further step.
        steps: How many it takes in all.
    """

    start: float
    each: float
    steps: int

    @property
    def seconds(self) -> float:
        """How long all of it takes."""
        return self.start + self.each * self.steps


def measure_pace(search: Callable[[], object]) -> Pace | None:
    """Time the first steps of a search between its reports, and stop it there.

    Returns:
        None if it ends before it was timed, or reports nothing.
    """
    began, first, pace = time.perf_counter(), None, None

    def stop(step: int, steps: int, _: float) -> None:
        nonlocal first, pace
        now = time.perf_counter()
        first = first or (step, now)
        taken, spent = step - first[0], now - first[1]
        if taken and (taken >= min(_TIMED_STEPS, steps - first[0]) or spent >= _TIMED_SECONDS):
            pace = Pace(first[1] - began, spent / taken, steps)
            raise _Enough

    with listen(stop), suppress(_Enough):
        search()
    return pace
