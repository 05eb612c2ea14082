"""Checks of the numbers and words that a factory is given."""

from __future__ import annotations

from collections.abc import Iterable

from seepage.core.errors import InvalidValue, UnknownName


def whole(name: str, value: object, *, at_least: int = 1) -> int:
    """Return a whole number that is large enough, or raise `InvalidValue`.

    Example:
        >>> whole("width", 64)
        64
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidValue(f"expected {name} as a whole number >= {at_least}, got {value!r}")
    return value


def widths(name: str, values: object) -> tuple[int, ...]:
    """Return one width per hidden layer as a tuple, or raise `InvalidValue`."""
    if not isinstance(values, tuple | list) or not values:
        raise InvalidValue(f"expected {name} as one width per layer, e.g. (256,), got {values!r}")
    return tuple(whole(f"each width in {name}", value) for value in values)


def choice(kind: str, value: object, known: Iterable[str]) -> None:
    """Raise `UnknownName` unless the value is one of the known words."""
    names = tuple(known)
    if value not in names:
        raise UnknownName(kind, str(value), names)
