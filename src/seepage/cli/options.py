"""What options write in words: parts with their options, networks in files, shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

# Numbers in one input: a hundred times as many as a photograph has.
_LARGEST = 100_000_000
_DIGITS = 20
# Data with options; see `DATASET` of the spec.
_OF_DATA = re.compile(r"(.+?):((?:split|pixels|mean|std|labels)=.*)")
# How an option of a part begins.
_KEY = re.compile(r"\s*[A-Za-z_][\w-]*\s*=")


def _read_option(written: str) -> tuple[str, Any]:
    """Read a key and its value.

    Example:
        >>> _read_option("hidden=64,32"), _read_option("activation=tanh")
        (('hidden', [64, 32]), ('activation', 'tanh'))
    """
    from seepage.core.errors import InvalidValue

    key, _, value = (word.strip() for word in written.partition("="))
    if not key or not value:
        raise InvalidValue(f"expected an option as key=value, got {written!r}")
    return key, _read_value(key, value)


def _read_value(key: str, written: str) -> Any:  # noqa: ANN401
    """Read a value, written as in a spec or as Python has it; a bare word is a string."""
    from seepage.core.construct import parse_toml
    from seepage.core.errors import InvalidValue

    if written == "None":
        raise InvalidValue(f"expected a value of {key}, got None; leave {key} out")
    listed = written[1:-1] if written.startswith("(") and written.endswith(")") else written
    forms = [{"True": "true", "False": "false"}.get(written, written)]
    forms += [f"[{listed}]"] * ("," in written)
    for form in forms:
        with suppress(InvalidValue):
            return parse_toml(f"value = {form}")["value"]
    with suppress(ValueError):  # .5 and 5. are numbers too
        return float(written)
    if "," in written or written[0] in "[({\"'":
        raise InvalidValue(
            f'cannot read {key}={written}; write numbers as 3,5 and words as ["a", "b"], in '
            "quotes for the shell"
        )
    return written


def read_part(written: str, kind: str) -> dict[str, Any]:
    """Read an attack, defense, model or data set with its options as the table that a spec has.

    Args:
        written: As NAME or NAME:key=value,key=value.
        kind: What it is, which is also the name of the option.

    Example:
        >>> read_part("Prune:ratio=0.9", "defense")
        {'name': 'Prune', 'ratio': 0.9}
        >>> read_part("mine:Net:sizes=3,5,deep=True", "model")
        {'name': 'mine:Net', 'sizes': [3, 5], 'deep': True}
        >>> read_part("folder:a=b:pixels=28", "data")
        {'name': 'folder:a=b', 'pixels': 28}
    """
    from seepage.core.errors import InvalidValue

    if kind == "data":  # paths may have any characters
        found = _OF_DATA.fullmatch(written)
        name, options = found.groups() if found else (written, "")
        listed = _split(options, ",", _KEY) if found else []
        return {"name": name, **dict(map(_read_option, listed))}
    head, given, values = written.strip().partition("=")
    name, _, key = head.rpartition(":") if given else (head, "", "")
    # A value without its key, as in Prune:0.9, is no name of a factory.
    bare = re.search(r":\s*([^A-Za-z_].*)?$", name)
    if not name or bare or (given and not _KEY.match(f"{key}=")):
        near = re.fullmatch(r"(.+),\s*(\w+)\s*", head) if given else None
        hint = f"; write {near[1]}:{near[2]}={values}" if near else ""
        raise InvalidValue(
            f"expected --{kind} as NAME or NAME:key=value,key=value, got {written!r}{hint}"
        )
    listed = _split(f"{key}={values}", ",", _KEY) if given else []
    return {"name": name, **dict(map(_read_option, listed))}


def read_chains(written: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Read defenses, each with its links joined by +; no defense is first unless it is listed.

    Example:
        >>> read_chains(["Sign"])
        [[], [{'name': 'Sign'}]]
        >>> read_chains(["Clip:max_norm=1+AddGaussian:std=1e+2", "none"])[1:]
        [[]]
    """
    chains = [
        [] if one.strip() == "none" else [read_part(link, "defense") for link in _links(one)]
        for one in written
    ]
    return chains if [] in chains else [[], *chains]


def _links(written: str) -> list[str]:
    return _split(written, "+", re.compile(r"\s*[A-Za-z_]"))


def _split(written: str, mark: str, begins: re.Pattern[str]) -> list[str]:
    """Split at a mark where the next part begins, outside brackets and quotes."""
    parts: list[str] = []
    for piece in written.split(mark):
        if parts and (_is_open(parts[-1]) or not begins.match(piece)):
            parts[-1] += mark + piece
        else:
            parts.append(piece)
    return parts


def _is_open(text: str) -> bool:
    brackets = any(text.count(first) != text.count(last) for first, last in ("[]", "()", "{}"))
    return brackets or any(text.count(quote) % 2 for quote in "\"'")


def read_network(model: str, options: Iterable[str] | None) -> dict[str, Any]:
    """Read --model and the options of the network as the table that a spec has."""
    table = read_part(model, "model")
    return {**table, "name": _name_module(table["name"]), **dict(map(_read_option, options or ()))}


def _name_module(name: str) -> str:
    """Name what is in a file below the current folder as Python does: `nets/small.py:Net`."""
    from seepage.core.errors import InvalidValue, UnknownName

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
    from seepage.core.errors import InvalidValue

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
