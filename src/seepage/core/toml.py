"""TOML that may come from anybody: one sentence if it is not valid, or too deep to be parsed."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from seepage.core.errors import InvalidValue

# Bytes of a text, and parts of one key: `tomllib` takes the square of the latter in memory.
LARGEST = 2**23
_MOST_PARTS = 200
_BETWEEN_KEYS = re.compile(r"[][{},=\n]")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text, within limits on size, depth and the length of keys and numbers.

    Raises:
        InvalidValue: If it is not valid, or beyond a limit.

    Example:
        >>> parse_toml("seeds = [0, 1]")
        {'seeds': [0, 1]}
    """
    if len(text) > LARGEST:
        raise InvalidValue(f"expected at most {LARGEST} characters, got {len(text)}")
    parts = max(part.count(".") for part in _BETWEEN_KEYS.split(text))
    if parts > _MOST_PARTS:
        raise InvalidValue(f"expected keys of at most {_MOST_PARTS} parts, got {parts}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InvalidValue("too many brackets inside each other") from None
    except ValueError as error:  # also a number of thousands of digits
        raise InvalidValue(str(error)) from None
