"""Parts in words: `Prune(ratio=0.9)`, as reports print them, and `Prune:ratio=0.9`, for a shell."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from seepage._printable import make_printable
from seepage.core._construct import parse_toml
from seepage.core._plugins import add_article
from seepage.core.errors import InvalidValue

# Characters of a part with all its options. Python's parser is safe for a text of this length.
_LONGEST = 10_000
# What can be called.
_NAME = re.compile(r"[\w:./-]+\s*")
# How an option begins, and how a link of a chain does.
_KEY = re.compile(r"\s*[A-Za-z_][\w-]*\s*=")
_LINK = re.compile(r"\s*[A-Za-z_]")
# Data with options.
_KEYS = r"((?:split|pixels|mean|std|labels)=.*)"
_OF_DATA = re.compile(rf"(.+?)(?::{_KEYS}|\({_KEYS}\))", re.DOTALL)
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_NUMBERS = {"inf": math.inf, "nan": math.nan}


def read_part(written: str, kind: str, *, order: Sequence[str] = ()) -> dict[str, Any]:
    """Read a part with its options as the table that a spec has.

    Args:
        written: As NAME(key=value, key=value) or NAME:key=value,key=value.
        kind: What it is, for messages.
        order: Options that may be given by their place alone.

    Example:
        >>> read_part("Prune(ratio=0.9)", "defense") == read_part("Prune:ratio=0.9", "defense")
        True
        >>> read_part("mine:Net(sizes=(3, 5), deep=True)", "model")
        {'name': 'mine:Net', 'sizes': [3, 5], 'deep': True}
        >>> read_part("Prune(0.9)", "defense", order=["ratio"])
        {'name': 'Prune', 'ratio': 0.9}
        >>> read_part("folder:a=b(pixels=28)", "data")
        {'name': 'folder:a=b', 'pixels': 28}
    """
    if len(written) > _LONGEST:
        raise InvalidValue(
            f"expected {add_article(kind)} of at most {_LONGEST:,} characters, got {len(written):,}"
        )
    if kind == "data":
        return _read_data(written)
    return _read_call(written, kind, order) or _read_pairs(written, kind)


def _read_data(written: str) -> dict[str, Any]:
    """Read a data set, whose name may be a path of any characters."""
    found = _OF_DATA.fullmatch(written)
    if found is None:
        return {"name": written}
    name, pairs, arguments = found.groups()
    given = read_options(pairs) if pairs else _read_call(f"data({arguments})", "data", ())
    # None stands for what is not given, which TOML cannot write.
    return {**{key: one for key, one in (given or {}).items() if one is not None}, "name": name}


def read_links(written: str) -> list[str]:
    """Split a chain into its links, which are joined by + or are what `chain(...)` is called with.

    Example:
        >>> read_links("Clip:max_norm=1e+2 + Sign()")
        ['Clip:max_norm=1e+2', 'Sign()']
        >>> read_links("chain(Prune(0.9), Sign())"), read_links("none")
        (['Prune(0.9)', 'Sign()'], [])
    """
    text = written.strip()
    if len(text) > _LONGEST:
        return [text]
    if text.startswith("chain(") and text.endswith(")"):
        inside = text[len("chain(") : -1]
        return [one.strip() for one in _split(inside, ",", _LINK)] if inside.strip() else []
    return [] if text == "none" else [one.strip() for one in _split(text, "+", _LINK)]


def read_option(written: str) -> tuple[str, Any]:
    """Read a key and its value.

    Example:
        >>> read_option("hidden=64,32"), read_option("activation=tanh")
        (('hidden', [64, 32]), ('activation', 'tanh'))
    """
    key, _, value = (word.strip() for word in written.partition("="))
    if not key or not value:
        raise InvalidValue(f"expected an option as key=value, got {written!r}")
    return key, _read_value(key, value)


def _read_pairs(written: str, kind: str) -> dict[str, Any]:
    """Read `NAME:key=value,key=value`."""
    head, given, values = written.strip().partition("=")
    name, _, key = head.rpartition(":") if given else (head, "", "")
    # A value without its key, as in Prune:0.9, is no name of a factory.
    bare = re.search(r":\s*([^A-Za-z_].*)?$", name)
    if not name or bare or (given and not _KEY.match(f"{key}=")):
        near = re.fullmatch(r"(.+),\s*(\w+)\s*", head) if given else None
        hint = f"; write {_write_line(f'{near[1]}:{near[2]}={values}')}" if near else ""
        raise InvalidValue(
            f"expected {add_article(kind)} as NAME(key=value) or NAME:key=value, got "
            f"{written!r}{hint}"
        )
    return {"name": name, **read_options(f"{key}={values}" if given else "")}


def read_options(written: str) -> dict[str, Any]:
    """Read `key=value,key=value`; a comma is part of a value unless a key comes after it.

    Example:
        >>> read_options("sizes=3,5,deep=True")
        {'sizes': [3, 5], 'deep': True}
    """
    return dict(map(read_option, _split(written, ",", _KEY))) if written else {}


def _read_value(key: str, written: str) -> Any:  # noqa: ANN401
    """Read a value, written as in a spec or as Python has it; a bare word is a string."""
    if written == "None":
        raise InvalidValue(f"expected a value of {key!r}, got None; leave it out")
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
            f'cannot read {written!r} as {key!r}; write numbers as 3,5 and words as ["a", "b"], in '
            "quotes for the shell"
        )
    return written


def _split(written: str, mark: str, begins: re.Pattern[str]) -> list[str]:
    """Split at a mark where the next part begins, outside brackets and quotes."""
    parts, start, quote = [], 0, ""
    closing: list[str] = []
    for place, character in enumerate(written):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == mark and not closing and begins.match(written, place + 1):
            parts.append(written[start:place])
            start = place + 1
    return [*parts, written[start:]]


def _read_call(written: str, kind: str, order: Sequence[str]) -> dict[str, Any] | None:
    """Read `NAME(key=value)`; None if it has no such form."""
    text = written.strip()
    name, opened, inside = text.partition("(")
    if not opened or not text.endswith(")") or not _NAME.fullmatch(name):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of odd literals
            call = ast.parse(f"part({inside}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise InvalidValue(
            f"expected {add_article(kind)} as NAME(key=value, key=value), got {written!r}"
        )
    return _read_arguments(name.strip(), call, order)


def _read_arguments(name: str, call: ast.Call, order: Sequence[str]) -> dict[str, Any]:
    """The table of a call: its name, and its arguments by their names."""
    if len(call.args) > len(order):
        raise InvalidValue(
            f"expected every option of {name} with its name, as {name}(key=value), got "
            f"{_write(call.args[len(order)])} alone"
        )
    table = {"name": name}
    given = [*zip(order, call.args, strict=False), *((one.arg, one.value) for one in call.keywords)]
    for key, value in given:
        if key is None or key in table:
            raise InvalidValue(f"expected every option of {name} once, got {key or '**'!r}")
        table[key] = _read_literal(f"{name} expects {key} as", value)
    return table


def _read_literal(expects: str, node: ast.expr) -> Any:  # noqa: ANN401
    """Read a literal of Python as plain data; a call is the table of another part."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant() | ast.Name() as number):
            value = _read_literal(expects, number)
            if type(value) in (int, float):
                return -value if isinstance(node.op, ast.USub) else value
        case ast.Name(id=word) if word in _NUMBERS:
            return _NUMBERS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_read_literal(expects, item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(map(_is_word, keys)):
            pairs = zip(keys, values, strict=True)
            return {key.value: _read_literal(expects, one) for key, one in pairs}  # type: ignore[union-attr]
        case ast.Call(func=ast.Name(id=name)):
            return _read_arguments(name, node, ())
    raise InvalidValue(f"{expects} a number, a list or words in quotes, got {_write(node)}")


def _is_word(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _write(node: ast.expr) -> str:
    """What stands there, for a message."""
    try:
        return _write_line(ast.unparse(node))
    except RecursionError:
        return "something else"


def _write_line(text: str) -> str:
    return " ".join(make_printable(text).split())
