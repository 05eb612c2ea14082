"""The text of a spec: reading it, writing it, and finding the line of an error in it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seepage.core.errors import DataNotFound, InvalidValue, SeepageError

QUICKSTART = Path(__file__).parent / "quickstart.toml"


@dataclass(frozen=True)
class SpecSource:
    """The text of a spec and where to run it.

    Args:
        name: Of the file, for messages.
        text: Its content.
        device: Where the networks go.
    """

    name: str
    text: str
    device: str = "cpu"

    @classmethod
    def read(cls, path: Path | None = None, *, device: str = "cpu") -> SpecSource:
        """Read a file; None takes the bundled quickstart."""
        path = QUICKSTART if path is None else path
        try:
            return cls(path.name, path.read_text(encoding="utf-8"), device)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise DataNotFound(f"cannot read the spec {str(path)!r}: {reason}") from error


def write_toml(spec: Mapping[str, Any]) -> str:
    """Write a spec that is plain data as TOML, one line for each entry of a scenario.

    Example:
        >>> print(write_toml({"seeds": [0], "scenario": {"data": {"name": "photos"}}}), end="")
        seeds = [0]
        <BLANKLINE>
        [[scenario]]
        data = { name = "photos" }
    """
    scenarios = spec.get("scenario", [])
    listed = [scenarios] if isinstance(scenarios, Mapping) else scenarios
    blocks = [{key: value for key, value in spec.items() if key != "scenario"}, *listed]
    texts = ["".join(f"{_key(k)} = {_entry(v)}\n" for k, v in block.items()) for block in blocks]
    return "\n[[scenario]]\n".join(texts)


def _entry(value: object) -> str:
    """Write an entry; a list of tables takes a line for each."""
    if isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
        return "[\n" + "".join(f"  {_value(v)},\n" for v in value) + "]"
    return _value(value)


def _value(value: object) -> str:
    """Write a value as TOML, which has the same words, numbers and booleans as JSON."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        raise InvalidValue(
            f"expected a spec of words, numbers, lists and tables, got {type(value).__name__}"
        ) from None


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


Place = tuple[str | int, ...]

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]+")


def lines(text: str) -> dict[Place, int]:
    r"""Find the line of every key, table and element of a list.

    Args:
        text: Valid TOML.

    Example:
        >>> found = lines('seeds = [0]\n[[scenario]]\nattacks = [\n  { name = "dlg" },\n]')
        >>> found["scenario", 0], found["scenario", 0, "attacks", 0, "name"]
        (2, 4)
    """
    found: dict[Place, int] = {}
    for place, line in _Scanner(text).statements():
        # A table that is not written down itself begins where its first entry begins.
        for end in range(1, len(place) + 1):
            found.setdefault(place[:end], line)
    return found


def nearest(known: dict[Place, int], place: Place) -> int | None:
    """Find the line of a place, or of the last part of the way to it that is written down."""
    found: Place = ()
    line = None
    for part in place:
        if (*found, part) in known:
            found = (*found, part)
            line = known[found]
        elif isinstance(part, str):
            break
        # A single table in place of a list of tables has no number.
    return line


def _numbered(key: Iterable[str | int], repeated: dict[Place, int]) -> Place:
    """Add the number of the latest entry after each list of tables in a header's key."""
    place: Place = ()
    for part in key:
        place = (*place, part)
        place = (*place, repeated[place]) if place in repeated else place
    return place


class _Scanner:
    """Walks once over a text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def statements(self) -> Iterator[tuple[Place, int]]:
        table: Place = ()
        repeated: dict[Place, int] = {}
        while self._more():
            line = self._line()
            if self._take("[["):
                *above, last = self._key()
                name = (*_numbered(above, repeated), last)
                repeated[name] = repeated.get(name, -1) + 1
                table = (*name, repeated[name])
                self._take("]]")
                yield table, line
            elif self._take("["):
                table = _numbered(self._key(), repeated)
                self._take("]")
                yield table, line
            else:
                yield from self._assignment(table)

    def _assignment(self, table: Place) -> Iterator[tuple[Place, int]]:
        line = self._line()
        place = (*table, *self._key())
        yield place, line
        self._take("=")
        yield from self._value(place)

    def _value(self, place: Place) -> Iterator[tuple[Place, int]]:
        if self._take("["):
            number = 0
            while not self._take("]"):
                yield (*place, number), self._line()
                yield from self._value((*place, number))
                self._take(",")
                number += 1
        elif self._take("{"):
            while not self._take("}"):
                yield from self._assignment(place)
                self._take(",")
        else:
            self._match(_STRING) or self._match(_SCALAR)

    def _key(self) -> Place:
        parts = [self._part()]
        while self._take("."):
            parts.append(self._part())
        return tuple(parts)

    def _part(self) -> str:
        self._more()
        return self._match(_BARE) or self._match(_STRING)[1:-1]

    def _more(self) -> bool:
        self._match(_BLANK)
        return self._at < len(self._text)

    def _take(self, word: str) -> bool:
        self._more()
        there = self._text.startswith(word, self._at)
        self._at += len(word) * there
        return there

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found[0] if found else ""

    def _line(self) -> int:
        self._more()
        return self._text.count("\n", 0, self._at) + 1


_SECTIONS = ("scenario", "data", "models", "locals", "defenses", "threats", "attacks", "bounds")


@contextmanager
def locate_error(source: SpecSource) -> Iterator[None]:
    """Put file, line and section before the message of any error raised inside."""
    try:
        yield
    except SeepageError as error:
        line = nearest(lines(source.text), error.place)
        file = source.name if line is None else f"{source.name}, line {line}"
        sentence = ": ".join([file, *_sections(error.place), str(error)])
        error.args = (sentence,)
        if isinstance(error, ImportError):  # prints `msg`, not its arguments
            error.msg = sentence
        raise


def _sections(place: Place) -> Iterator[str]:
    for part, after in zip(place, (*place[1:], None), strict=True):
        if part == "scenario" and isinstance(after, int):
            yield f"scenario {after + 1}"
        elif part in _SECTIONS[1:]:
            yield str(part)
