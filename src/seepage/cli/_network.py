"""`--model` and `--shape`: a network, which may be in a file, and the shape of its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from seepage.audit._spec_entries import read_words
from seepage.core._part_text import read_option
from seepage.core.errors import InvalidValue, UnknownName

# Numbers in one input: a hundred times as many as a photograph has.
_LARGEST = 100_000_000
_DIGITS = 20


def read_network(model: str, options: Iterable[str]) -> dict[str, Any]:
    """Read --model and the options of the network as the table that a spec has."""
    table = read_words(model, "model")
    return {**table, "name": _name_module(table["name"]), **dict(map(read_option, options))}


def _name_module(name: str) -> str:
    """Name what is in a file below the current folder as Python does: `nets/small.py:Net`."""
    path, _, inside = name.partition(":")
    if not path.endswith(".py"):
        return name
    file, here = Path(path), Path.cwd()
    if not file.is_file():
        beside = (one.as_posix() for one in file.parent.glob("*.py"))
        raise UnknownName("file", path, beside)
    if not inside:
        held = re.findall(r"^(?:class|def) (\w+)", file.read_text(errors="replace"), re.M)
        raise InvalidValue(
            f"expected --model as {path}:NAME, with a class or function of that file"
            + (f" ({', '.join(held)})" if held else "")
            + f", got {path!r}"
        )
    place = file.resolve()
    if not place.is_relative_to(here.resolve()):
        raise InvalidValue(
            f"expected a file below the current folder, got {path!r}; run the command in "
            f"{str(file.parent)!r} and write {file.name}:{inside}"
        )
    words = place.relative_to(here.resolve()).with_suffix("").parts
    if not all(map(str.isidentifier, words)) or words[0] == "__main__":
        raise InvalidValue(
            f"expected a path that Python can import, of letters, digits and _, got {path!r}; "
            "rename it"
        )
    found = find_spec(words[0])
    homes = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    if homes and not any(home and place.is_relative_to(Path(home).resolve()) for home in homes):
        raise InvalidValue(
            f"Python imports {words[0]!r} from {homes[0]!r} instead of {path!r}; rename it"
        )
    return f"{'.'.join(words)}:{inside}"


def read_shape(shape: str) -> tuple[int, ...]:
    """Read the shape of one input.

    Example:
        >>> read_shape("3x32x32")
        (3, 32, 32)
        >>> read_shape("12")
        (12,)
    """
    # Python makes no numbers of thousands of digits.
    read = tuple(int(s) for s in shape.split("x") if s.isdecimal() and len(s) < _DIGITS)
    if len(read) not in (1, 2, 3) or shape.count("x") != len(read) - 1:
        raise InvalidValue(
            f"expected --shape as channels and sizes, such as 3x32x32 or 1x140, or as the "
            f"number of columns of a row, such as 12, got {shape!r}"
        )
    if (entries := prod(read)) > _LARGEST:
        raise InvalidValue(
            f"expected --shape of {_LARGEST:,} numbers or fewer, got {shape}, which are {entries:,}"
        )
    return read
