"""The text of a spec: reading it, writing it, and finding the line of an error in it."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from seepage.audit._plan import PLAN
from seepage.core._construct import LARGEST, parse_toml, write_call
from seepage.core._whole_file import read_plain
from seepage.core.errors import DataNotFound, InvalidValue, SeepageError, UnreadableFile

QUICKSTART = Path(__file__).parent / "quickstart.toml"


@dataclass(frozen=True)
class SpecSource:
    """The text of a spec and where to run it.

    Args:
        name: Of the file, for messages; empty if nobody wrote one.
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
        if path.suffix == ".safetensors":
            raise InvalidValue(
                f"expected a spec in TOML, got {str(path)!r}; a captured update goes with --capture"
            )
        try:
            text = read_plain(path, follow=True, largest=LARGEST).decode()
        except UnreadableFile as error:
            hint = "; to see the audit in it: seepage report" if (path / PLAN).is_file() else ""
            raise UnreadableFile(f"cannot read the spec {str(path)!r}: {error}{hint}") from error
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise DataNotFound(f"cannot read the spec {str(path)!r}: {reason}") from error
        return cls(path.name, text.replace("\r\n", "\n"), device)


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
    if not isinstance(listed, list | tuple) or not all(isinstance(s, Mapping) for s in listed):
        raise InvalidValue("expected scenario as one or more tables by name, got something else")
    blocks = [{key: value for key, value in spec.items() if key != "scenario"}, *listed]
    try:
        texts = [
            "".join(f"{_key(k)} = {write_entry(v)}\n" for k, v in block.items()) for block in blocks
        ]
    except RecursionError:
        raise InvalidValue(
            "expected a spec of a few levels, got too many inside each other"
        ) from None
    return "\n[[scenario]]\n".join(texts)


def write_entry(value: object) -> str:
    """Write the value of an entry; a list of tables, or of chains of them, takes a line for each.

    Example:
        >>> print(write_entry([{"name": "dlg"}]))
        [
          { name = "dlg" },
        ]
    """
    if isinstance(value, list | tuple) and any(isinstance(v, Mapping | list) for v in value):
        return "[\n" + "".join(f"  {write_value(v)},\n" for v in value) + "]"
    return write_value(value)


def write_value(value: object) -> str:
    """Write a value as TOML, which has the same words, numbers and booleans as JSON, but no None.

    Example:
        >>> write_value({"name": "Mean", "over": None})
        '"Mean(over=None)"'
    """
    if isinstance(value, Mapping) and None in value.values() and "name" in value:
        options = {key: one for key, one in value.items() if key != "name"}
        return json.dumps(write_call(value["name"], options), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {write_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        raise InvalidValue(
            f"expected a spec of words, numbers, lists and tables, got {type(value).__name__}"
        ) from None


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidValue(f"expected the keys of a spec as words, got {key!r}")
    return key if _BARE.fullmatch(key) else json.dumps(key)


Place = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# Strings and comments, whose brackets do not count.
_IGNORED = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|"
    r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'|#[^\n]*",
    re.DOTALL,
)


def _find_line(text: str, place: Place) -> int | None:
    r"""Find the line of a place, or of the last part of the way to it that is written down.

    The place begins in the first line with which the text so far, its open brackets closed, has it.

    Example:
        >>> text = 'seeds = [0]\n[[scenario]]\nattacks = [\n  { name = "dlg" },\n]'
        >>> _find_line(text, ("scenario", 0))
        2
        >>> _find_line(text, ("scenario", 0, "attacks", 0, "name"))
        4
    """
    found, lines = _follow(parse_toml(text), place), text.splitlines()
    if not found:
        return None

    @cache
    def parse(count: int) -> Any:  # noqa: ANN401
        return _parse_beginning("\n".join(lines[:count]))

    def has_place(count: int) -> bool:
        while (parsed := parse(count)) is None:
            count -= 1
        return _follow(parsed, found) == found

    line = bisect_left(range(len(lines)), True, key=has_place)
    # A string of several lines is not valid until its last one.
    while parse(line - 1) is None:
        line -= 1
    return line


def _follow(value: Any, place: Place) -> Place:  # noqa: ANN401
    """Follow a place into parsed TOML as far as it exists."""
    found: Place = ()
    for part in place:
        inside = (
            isinstance(value, dict) and part in value
            if isinstance(part, str)
            else isinstance(value, list) and part < len(value)
        )
        if inside:
            value, found = value[part], (*found, part)
        elif isinstance(part, str):
            break
        # A single table in place of a list of tables has no number.
    return found


def _parse_beginning(text: str) -> dict[str, Any] | None:
    """Parse the beginning of a text after closing its brackets; None if it ends in a string."""
    closing = ""
    for bracket in re.findall(r"[][{}]", _IGNORED.sub("", text)):
        closing = {"[": "]", "{": "}"}[bracket] + closing if bracket in "[{" else closing[1:]
    try:
        return parse_toml(f"{text}\n{closing}")
    except InvalidValue:
        return None


_SECTIONS = ("scenario", "data", "models", "locals", "defenses", "threats", "attacks", "bounds")


@contextmanager
def locate_error(source: SpecSource) -> Iterator[None]:
    """Put file, line and section before the message of any error raised inside."""
    try:
        yield
    except SeepageError as error:
        line = _find_line(source.text, error.place)
        where = [source.name + (f", line {line}" if line else ""), *_sections(error.place)]
        sentence = ": ".join([*(where if source.name else ()), str(error)])
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
