"""The serial form of a value: its class name and fields, so that a record names what ran."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any


def serialise(value: Any) -> Any:  # noqa: ANN401
    """Turn a frozen dataclass into plain data that JSON and TOML can hold.

    Example:
        >>> from seepage.core.reconstruction import Certificate
        >>> serialise(Certificate(residual=0.5))
        {'name': 'Certificate', 'residual': 0.5, 'unique': None}
    """
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: serialise(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"name": type(value).__name__, **named}
    if isinstance(value, tuple | list):
        return [serialise(item) for item in value]
    if isinstance(value, dict):
        return {key: serialise(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)
