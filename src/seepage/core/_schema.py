"""Dataclasses as plain data and back: the type hints are the schema.

`to_plain` writes a frozen dataclass as what JSON can hold. `from_plain` reads it back, strictly: a
file may come from anybody, and whatever does not have its declared type is refused in one sentence
that names the field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from seepage.core.errors import UnreadableFile

T = TypeVar("T")
_Reader = Callable[[Any], Any]

# Numbers beyond this do not fit into tables.
LARGEST = 2**63 - 1
_LONGEST, _MOST = 100_000, 1_000_000
_INFINITIES = ("inf", "-inf")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Within:
    """The least and the largest value that a number may have, given in `Annotated`."""

    least: float = -math.inf
    most: float = math.inf


@dataclass(frozen=True)
class Matches:
    """The regular expression that a whole text must match, given in `Annotated`."""

    pattern: str


@dataclass(frozen=True)
class AtMost:
    """How many characters a text may have, given in `Annotated`; 100 000 otherwise."""

    length: int


Count = Annotated[int, Within(0)]
Place = Annotated[int, Within(1)]
Share = Annotated[float, Within(0, 1)]
Seconds = Annotated[float, Within(0)]


def to_plain(value: Any) -> Any:  # noqa: ANN401
    """Write a value as what JSON can hold: infinity becomes the word "inf", and NaN None.

    Example:
        >>> to_plain(Within(0))
        {'least': 0, 'most': 'inf'}
    """
    if is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def from_plain(kind: type[T], plain: object) -> T:
    """Undo `to_plain`.

    Raises:
        UnreadableFile: If anything in it is not what the hints of this class say.

    Example:
        >>> from_plain(Within, {"least": 0, "most": "inf"})
        Within(least=0.0, most=inf)
        >>> from_plain(Within, {"least": "low"})
        Traceback (most recent call last):
        seepage.core.errors.UnreadableFile: the field 'least' is not what it should be: expected a \
number, got 'low'
    """
    try:
        hint: Any = kind
        read: Callable[[object], T] = _reader(hint)
        return read(plain)
    except RecursionError:
        raise UnreadableFile("it is nested too deeply") from None
    except UnreadableFile as error:
        if not error.place:
            raise
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.place)
        where = "".join(steps).removeprefix(".")
        raise UnreadableFile(
            f"the field {where[:80]!r} is not what it should be: {error}"
        ) from None


def parse_json(text: str, what: str) -> Any:  # noqa: ANN401
    """Parse JSON without NaN or halves of characters; raise `UnreadableFile` if it is none."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
        # Half of a character cannot be printed or written.
        if "\\u" in text and _SURROGATE.search(json.dumps(found, ensure_ascii=False)):
            raise ValueError("half of a character")
        return found
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{what} is not plain JSON ({str(error)[:100]})") from None


def _refuse_constant(word: str) -> object:
    raise ValueError(f"the number {word}")


def _wrong(expected: str, got: object) -> UnreadableFile:
    shown = repr(got) if isinstance(got, str | int | float | None) else type(got).__name__
    return UnreadableFile(f"expected {expected}, got {shown[:60]}")


def _at(place: str | int, error: UnreadableFile) -> UnreadableFile:
    error.place = (place, *error.place)
    return error


@cache
def _reader(hint: Any) -> Any:  # noqa: ANN401
    """Make what reads plain data of a type; once for each type, since records are many."""
    plain = {str: _text(_LONGEST), bool: _truth_value, int: _whole_number, float: _number}
    if hint in plain:
        return plain[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return _anything
    if origin is Annotated:
        return _constrained(*inner)
    if origin is Literal:
        return _choice(inner)
    if origin in (Union, UnionType):
        return _union(inner)
    if origin is tuple:
        return _sequence(inner[0]) if inner[1:] == (...,) else _fixed(inner)
    if origin in (Mapping, dict):
        return _mapping(_reader(inner[1]))
    if hint is NoneType:
        return _nothing
    if is_typeddict(hint):
        return _table(dict, _hints(hint), frozenset(hint.__optional_keys__))
    if isinstance(hint, type) and is_dataclass(hint):
        given = [one for one in fields(hint) if one.init]
        optional = {
            one.name
            for one in given
            if one.default is not MISSING or one.default_factory is not MISSING
        }
        hints = _hints(hint)
        return _table(hint, {one.name: hints[one.name] for one in given}, frozenset(optional))
    raise TypeError(f"no plain data is read as {hint!r}")


def _hints(kind: type) -> dict[str, _Reader]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: _reader(hint) for name, hint in hints.items()}


def _nothing(plain: object) -> None:
    if plain is not None:
        raise _wrong("nothing", plain)


def _truth_value(plain: object) -> bool:
    if not isinstance(plain, bool):
        raise _wrong("true or false", plain)
    return plain


def _whole_number(plain: object) -> int:
    if type(plain) is not int or abs(plain) > LARGEST:
        raise _wrong("a whole number", plain if type(plain) is not int else "a larger one")
    return plain


def _number(plain: object) -> float:
    if isinstance(plain, str) and plain in _INFINITIES:
        return float(plain)
    whole = type(plain) is int and abs(plain) <= LARGEST
    if not whole and not (type(plain) is float and math.isfinite(plain)):
        raise _wrong("a number", plain if type(plain) is not int else "a larger one")
    return float(plain)  # type: ignore[arg-type]


def _text(longest: int) -> _Reader:
    def read(plain: object) -> str:
        if not isinstance(plain, str) or len(plain) > longest or _SURROGATE.search(plain):
            raise _wrong(f"a text of at most {longest} characters", plain)
        return plain

    return read


def _anything(plain: Any) -> Any:  # noqa: ANN401
    """Read what the arguments of a component may be; lists become tuples."""
    if isinstance(plain, dict):
        return {_word(key): _anything(item) for key, item in plain.items()}
    if isinstance(plain, list):
        return tuple(map(_anything, plain))
    if plain is None or isinstance(plain, bool):
        return plain
    if isinstance(plain, str):
        return float(plain) if plain in _INFINITIES else _word(plain)
    return plain if type(plain) is int and _whole_number(plain) == plain else _number(plain)


_word = _text(_LONGEST)


def _constrained(hint: Any, *constraints: object) -> _Reader:  # noqa: ANN401
    """Read a type with `Within`, `Matches` or `AtMost`."""
    lengths = [one.length for one in constraints if isinstance(one, AtMost)]
    inner = _text(lengths[0]) if lengths else _reader(hint)
    bounds = [one for one in constraints if isinstance(one, Within)]
    patterns = [re.compile(one.pattern) for one in constraints if isinstance(one, Matches)]

    def read(plain: object) -> Any:  # noqa: ANN401
        found = inner(plain)
        for one in bounds:
            if not one.least <= found <= one.most:
                raise _wrong(f"a number from {one.least:g} to {one.most:g}", plain)
        for pattern in patterns:
            if not pattern.fullmatch(found):
                raise _wrong("a name", plain)
        return found

    return read


def _choice(words: tuple[object, ...]) -> _Reader:
    def read(plain: object) -> object:
        if not isinstance(plain, str) or plain not in words:
            raise _wrong(f"one of {', '.join(map(repr, words))}", plain)
        return plain

    return read


def _union(hints: tuple[Any, ...]) -> _Reader:
    some = [_reader(hint) for hint in hints if hint is not NoneType]
    may_be_none = NoneType in hints

    def read(plain: object) -> object:
        if plain is None and may_be_none:
            return None
        for reader in some[:-1]:
            try:
                return reader(plain)
            except UnreadableFile:
                continue
        return some[-1](plain)

    return read


def _sequence(hint: Any) -> _Reader:  # noqa: ANN401
    inner = _reader(hint)

    def read(plain: object) -> tuple[object, ...]:
        if not isinstance(plain, list) or len(plain) > _MOST:
            raise _wrong("a list", plain)
        found: list[object] = []
        for item in plain:
            try:
                found.append(inner(item))
            except UnreadableFile as error:
                raise _at(len(found), error) from None
        return tuple(found)

    return read


def _fixed(hints: tuple[Any, ...]) -> _Reader:
    readers = [_reader(hint) for hint in hints]

    def read(plain: object) -> tuple[object, ...]:
        if not isinstance(plain, list) or len(plain) != len(readers):
            raise _wrong(f"a list of {len(readers)}", plain)
        return tuple(reader(item) for reader, item in zip(readers, plain, strict=True))

    return read


def _mapping(inner: _Reader) -> _Reader:
    def read(plain: object) -> dict[str, object]:
        if not isinstance(plain, dict):
            raise _wrong("names and values", plain)
        found: dict[str, object] = {}
        for key, item in plain.items():
            try:
                found[_word(key)] = inner(item)
            except UnreadableFile as error:
                raise _at(str(key), error) from None
        return found

    return read


def _table(
    make: Callable[..., Any], readers: Mapping[str, _Reader], optional: frozenset[str]
) -> _Reader:
    """Read names and values that are known: a dataclass or a `TypedDict`."""
    needed = readers.keys() - optional

    def read(plain: object) -> Any:  # noqa: ANN401
        if not isinstance(plain, dict):
            raise _wrong("names and values", plain)
        if odd := plain.keys() - readers.keys():
            raise UnreadableFile(f"there is no field {min(map(str, odd))[:40]!r}")
        if lacking := needed - plain.keys():
            raise UnreadableFile(f"the field {min(lacking)!r} is missing")
        found = {}
        for name, item in plain.items():
            try:
                found[name] = readers[name](item)
            except UnreadableFile as error:
                raise _at(name, error) from None
        return make(**found)

    return read
