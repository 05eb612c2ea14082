"""Networks as the command line names them."""

from __future__ import annotations

import tomllib
from math import prod
from typing import Any

from seepage.core import Domain
from seepage.core.errors import InvalidValue
from seepage.domains import CIFAR10, Image, Signal

# Numbers in one input: some hundred times as many as a photograph has.
LARGEST = 100_000_000


def domain_of(shape: str | None) -> Domain:
    """The space of inputs of this shape, written as `3x32x32` or `1x140`; None for CIFAR images."""
    if shape is None:
        return CIFAR10
    read = sizes(shape)
    return {2: Signal, 3: Image}[len(read)](read)


def sizes(shape: str) -> tuple[int, ...]:
    """The shape of one input, from what was written on the command line.

    Example:
        >>> sizes("3x32x32")
        (3, 32, 32)
    """
    read = tuple(int(size) for size in shape.split("x") if size.isdigit())
    if len(read) not in (2, 3) or shape.count("x") != len(read) - 1:
        raise InvalidValue(
            f"expected --shape as channels and sizes, such as 3x32x32 or 1x140, got {shape!r}"
        )
    if (entries := prod(read)) > LARGEST:
        raise InvalidValue(
            f"expected --shape of {LARGEST:,} numbers or fewer, got {shape}, which are {entries:,}"
        )
    return read


def option(written: str) -> tuple[str, Any]:
    """A key and its value, written as in a spec; a bare word is a string."""
    key, separator, value = written.partition("=")
    if not separator:
        raise InvalidValue(f"expected --option as key=value, got {written!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
