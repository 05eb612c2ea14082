"""Ctrl-C, SIGTERM and SIGHUP: one sentence, an exit code, and an audit that can go on.

It stands outside of all packages and imports none, so that it works before they are imported.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_received: list[int] = []


class _Stopped(KeyboardInterrupt):
    """A signal asked this process to end."""


def exit_code(default: int) -> int:
    """Return the exit code that shells expect after the last signal, if one came."""
    return 128 + _received[-1] if _received else default


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """End at once on a signal, with one sentence: nothing has begun that must be ended properly.

    An exception would not do, since it may come in the middle of an import.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        sentence = f"\nseepage: interrupted by {signal.Signals(number).name}; nothing was lost\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, sentence.encode())
        os._exit(128 + number)

    with _handle(leave):
        yield


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise `_Stopped` on a signal, so that what is at work can be ended properly."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        _received.append(number)
        raise _Stopped

    with _handle(stop):
        yield


@contextmanager
def _handle(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    _received.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored stays ignored, as with nohup.
    before = {one: signal.getsignal(one) for one in _SIGNALS}
    heeded = [one for one, what in before.items() if what not in (signal.SIG_IGN, None)]
    try:
        for one in heeded:
            signal.signal(one, handler)
        yield
    finally:
        for one in heeded:
            signal.signal(one, before[one])
