"""Plain data: read from TOML, given to a constructor, and written of its arguments."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from seepage.core._digest import stable_repr
from seepage.core.errors import InvalidValue, UnknownName, error_path

T = TypeVar("T")

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Bytes of a text, and parts of one key: `tomllib` takes the square of the latter in memory.
LARGEST = 2**23
_MOST_PARTS = 200
_BETWEEN_KEYS = re.compile(r"[][{},=\n]")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML from anybody, within limits on size, depth and the length of keys and numbers.

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


Parts = Mapping[Any, Callable[[Any], object]]


def construct(
    name: str,
    function: Callable[..., T],
    options: Mapping[str, object],
    *,
    parts: Parts = MappingProxyType({}),
) -> T:
    """Call `function(**options)` with values of the declared types; explain what cannot be used.

    Args:
        name: What errors call it.
        function: A function or class whose parameters have type hints.
        options: Plain data by name, as `build` takes it.
        parts: How to build what plain data cannot be, by its type.

    Example:
        >>> from seepage.core._reconstruction import Certificate
        >>> construct("Certificate", Certificate, {"residal": 0.0})
        Traceback (most recent call last):
        ...
        seepage.core.errors.UnknownName: unknown option 'residal' of Certificate; did you mean \
'residual'? (known: certain, error, locally_unique, residual, unique)
    """
    declared = inspect.signature(function).parameters
    parameters = {name: p for name, p in declared.items() if p.kind not in _COLLECTING}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in declared.values())
    unknown = [] if takes_any else [option for option in options if option not in parameters]
    if unknown:
        with error_path(unknown[0]):
            raise UnknownName("option", unknown[0], parameters, where=f"of {name}")
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise InvalidValue(f"{name} needs the option {option!r}, which is not given")
    hints, given = _hints(function), {}
    for option, value in options.items():
        with error_path(option):
            hint, expects = hints.get(option, Any), f"{name} expects {option}"
            given[option] = build(value, hint, expects, parts=parts)
        if option in parameters and isinstance(parameters[option].default, tuple):
            single = option not in hints and isinstance(value, bool | int | float)
            given[option] = (value,) if single else _freeze_lists(given[option])
    try:
        return function(**given)
    except TypeError as error:
        # Only values of a wrong type are left, such as a string compared with a number.
        reason = " ".join(str(error).splitlines()[:1])
        raise InvalidValue(f"{name} cannot use {given!r}: {reason}") from error


def build(value: Any, hint: Any, expects: str, *, parts: Parts = MappingProxyType({})) -> Any:  # noqa: ANN401
    """Build the value of a declared type of plain data.

    A list becomes a tuple, and so does a single value, where a tuple is declared; a table becomes
    the dataclass that is declared, or what `parts` makes of it.

    Example:
        >>> build(32, tuple[int, ...], "mlp expects hidden"), build([1], Any, "it expects it")
        ((32,), [1])
        >>> build("high", float | None, "Prune expects ratio")
        Traceback (most recent call last):
        ...
        seepage.core.errors.InvalidValue: Prune expects ratio as float | None, got 'high'
    """
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for choice in choices if value is not None else ():
        if choice in parts:
            return parts[choice](value)
        if get_origin(choice) is tuple and get_args(choice)[0] in parts:
            return _build_several(value, parts[get_args(choice)[0]], expects)
        if is_dataclass(choice) and isinstance(choice, type) and isinstance(value, Mapping):
            return construct(choice.__name__, choice, value, parts=parts)
    for choice in choices:
        if _fits(value, choice):
            return _freeze_lists(value) if tuple in (choice, get_origin(choice)) else value
    # A number is one of several only where no number is declared.
    for choice in choices:
        if get_origin(choice) in (tuple, Sequence) and _fits(value, get_args(choice)[0]):
            return (value,) if get_origin(choice) is tuple else [value]
    wanted = getattr(hint, "__name__", str(hint))
    raise InvalidValue(f"{expects} as {_TOLD.get(hint, wanted)}, got {value!r}")


def _build_several(value: Any, read: Callable[[Any], T], expects: str) -> tuple[T, ...]:  # noqa: ANN401
    """Build every part of a list; one alone needs no list."""
    listed = [value] if isinstance(value, Mapping | str) else value
    if not isinstance(listed, list) or not listed:
        raise InvalidValue(
            f"{expects} as one or more tables such as {{ name = ... }}, or words, got {value!r}"
        )
    found = []
    for number, one in enumerate(listed):
        with error_path(number):
            found.append(read(one))
    return tuple(found)


_TOLD = {bool: "true or false", str: "words in quotes"}


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    """Return the declared types of the parameters, if they can be found."""
    declared = vars(function).get("__init__", function) if isinstance(function, type) else function
    try:
        return _read_hints(getattr(declared, "func", declared))
    except (NameError, TypeError):  # names imported for type checkers only
        return {}


_read_hints = cache(get_type_hints)


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401
    """Whether plain data has a declared type; other values are left to the constructor."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        # The constructor explains a wrong word better.
        return isinstance(value, type(inner[0]))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if tuple in (hint, origin):
        return isinstance(value, list | tuple)
    if origin is Sequence:
        return isinstance(value, list | tuple | str) or not _fits(value, inner[0])
    if origin is None and isinstance(hint, type) and not getattr(hint, "_is_protocol", False):
        return isinstance(value, hint)
    return True


def write_call(name: str, options: Mapping[str, object]) -> str:
    """Write the call, for records and tables.

    Example:
        >>> write_call("Prune", {"ratio": 0.9})
        'Prune(ratio=0.9)'
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def _serialise(value: Any) -> Any:  # noqa: ANN401
    """Turn a frozen dataclass into plain data that JSON and TOML can hold.

    Example:
        >>> from seepage.core._reconstruction import Certificate
        >>> _serialise(Certificate(residual=0.5))["arguments"]["residual"]
        0.5
    """
    if is_dataclass(value) and not isinstance(value, type):
        arguments = {f.name: _serialise(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"name": type(value).__name__, "arguments": arguments}
    if isinstance(value, tuple | list):
        return [_serialise(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _serialise(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return stable_repr(value)


@dataclass(frozen=True)
class Component:
    """A defense, threat, attack or local computation as values, for records and identities.

    Args:
        name: Of the class, or what the user calls it.
        arguments: Plain data by name; lists are kept as tuples.

    Example:
        >>> from seepage.core._reconstruction import Certificate
        >>> Component.of(Certificate(residual=0.5)).arguments
        {'residual': 0.5, 'unique': None, 'error': None, 'certain': None, 'locally_unique': None}
        >>> str(Component("dlg", {"steps": 3})), str(Component.of("my attack"))
        ('dlg(steps=3)', 'my attack')
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make tuples of lists, so that values read from JSON equal those written by hand."""
        object.__setattr__(self, "arguments", _freeze_lists(dict(self.arguments)))

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, repr(self.arguments)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        """The call, or the name alone if there are no arguments."""
        return write_call(self.name, self.arguments) if self.arguments else self.name

    @classmethod
    def of(cls, value: object) -> Component:
        """Describe an object: a dataclass by its fields, a name as it is, others by their repr."""
        if isinstance(value, Component):
            return value
        plain = _serialise(value)
        return cls(**plain) if isinstance(plain, dict) else cls(str(plain))


def _freeze_lists(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _freeze_lists(item) for key, item in value.items()}
    return tuple(map(_freeze_lists, value)) if isinstance(value, list | tuple) else value
