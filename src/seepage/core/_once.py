"""Work that several parts of one call ask for, done once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from seepage.core.errors import SeepageError

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
_Known = WeakKeyDictionary[object, dict[Hashable, object]]

_known: ContextVar[_Known | None] = ContextVar("seepage_known", default=None)


@contextmanager
def computing_once() -> Iterator[None]:
    """Remember what functions marked `once` return, until the outermost such block ends.

    Networks and updates must not be changed in place inside it.
    """
    if _known.get() is not None:
        yield
        return
    token = _known.set(WeakKeyDictionary())
    try:
        yield
    finally:
        _known.reset(token)


def once(compute: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Mark a function of a task or an observation whose result, or error, may be remembered.

    Inside `computing_once` it is remembered for this very object and equal further arguments.

    Example:
        >>> class Network: pass
        >>> @once
        ... def probe(network):
        ...     print("running")
        ...     return 3
        >>> network = Network()
        >>> with computing_once():
        ...     probe(network) + probe(network)
        running
        6
    """

    @wraps(compute)
    def ask(subject: S, /, *args: P.args, **options: P.kwargs) -> T:
        known = _known.get()
        if known is None:
            return compute(subject, *args, **options)
        found, key = known.setdefault(subject, {}), (compute, args, tuple(options.items()))
        try:
            hash(key)
        except TypeError:
            return compute(subject, *args, **options)
        if key not in found:
            try:
                found[key] = compute(subject, *args, **options)
            except SeepageError as error:
                found[key] = error
        result = found[key]
        if isinstance(result, SeepageError):
            raise result.with_traceback(None)
        return result  # type: ignore[return-value]

    return ask
