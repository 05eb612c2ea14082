"""Where in a spec a mistake stands, found out while an error passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seepage.core.errors import SeepageError


@contextmanager
def located(*place: str | int) -> Iterator[None]:
    """Put these keys and numbers before the place of any error raised inside.

    Example:
        >>> try:
        ...     with located("scenario", 0), located("attacks", 1):
        ...         raise SeepageError("no such attack")
        ... except SeepageError as error:
        ...     print(error.place, error)
        ('scenario', 0, 'attacks', 1) no such attack
    """
    try:
        yield
    except SeepageError as error:
        error.place = (*place, *error.place)
        raise
