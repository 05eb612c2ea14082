"""From a dataclass of options to a command of Typer, and back to the words of a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from importlib import import_module
from inspect import Parameter, Signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

import typer

from seepage._options import Option, Panel
from seepage.cli._console import make_console


@dataclass(frozen=True)
class _Entry:
    """A field of a dataclass of options: an option, or a group of them."""

    field: Field[Any]
    type: Any
    option: Option
    panel: str | None

    @property
    def is_ended(self) -> bool:
        """Whether its flag ends what is so by default."""
        return self.field.default is True

    @property
    def parameter(self) -> Parameter:
        """The parameter of which Typer makes an option."""
        shown, default = self.option, self.field.default
        if default is MISSING:
            default = Parameter.empty
        elif default == ():
            default = None
        read = _typer_type(self.type)
        info = (
            typer.Argument(help=shown.help, metavar=shown.metavar)
            if shown.is_argument
            else typer.Option(
                *shown.flags.split(),
                help=shown.help,
                metavar=shown.metavar,
                min=shown.least,
                hidden=shown.hidden,
                rich_help_panel=self.panel,
            )
        )
        return Parameter(
            self.field.name,
            Parameter.KEYWORD_ONLY,
            default=not default if self.is_ended else default,
            annotation=Annotated[Optional[read] if default is None else read, info],  # noqa: UP045
        )

    def read(self, value: Any) -> Any:  # noqa: ANN401
        """The value of the field, of what Typer read."""
        if self.is_ended:
            return not value
        if isinstance(value, list) or (value is None and self.field.default == ()):
            return tuple(value or ())
        return value.value if isinstance(value, StrEnum) else value

    def write(self, value: Any) -> list[str]:  # noqa: ANN401
        """The words that give a value; none for the default."""
        if value == self.field.default:
            return []
        if self.option.is_argument:
            return [str(value)]
        flag = (self.option.flags.split() or [f"--{self.field.name.replace('_', '-')}"])[0]
        if isinstance(value, bool):
            return [flag]
        listed = value if isinstance(value, tuple | list) else [value]
        return [word for one in listed for word in (flag, str(one))]


def _typer_type(hint: Any) -> Any:  # noqa: ANN401
    """The type that Typer reads: words to choose from are an enumeration, a tuple is a list."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for part in parts:
        if get_origin(part) is Literal:
            return StrEnum("Choice", [(word, word) for word in get_args(part)])
    plain = next(part for part in parts if part is not NoneType)
    if get_origin(plain) in (tuple, Sequence):
        inner = get_args(plain)[0]
        return list[str] if inner is Any else list[inner]  # type: ignore[valid-type]
    return plain


def _list_entries(options: Any, panel: str | None = None) -> Iterator[_Entry]:  # noqa: ANN401
    """The options and groups of a dataclass; other fields are no options of the command."""
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        hint = hints[field.name]
        hint, *extras = get_args(hint) if get_origin(hint) is Annotated else [hint]
        titles = [extra.title for extra in extras if isinstance(extra, Panel)]
        shown = [extra for extra in extras if isinstance(extra, Option)]
        if shown or is_dataclass(hint):
            yield _Entry(field, hint, next(iter(shown), Option()), next(iter(titles), panel))


def _list_options(options: Any, panel: str | None = None) -> Iterator[_Entry]:  # noqa: ANN401
    for entry in _list_entries(options, panel):
        if is_dataclass(entry.type):
            yield from _list_options(entry.type, entry.panel)
        else:
            yield entry


def _build(options: Any, given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Build the options and the groups in them of what Typer read, which is by name."""
    return options(
        **{
            entry.field.name: _build(entry.type, given)
            if is_dataclass(entry.type)
            else entry.read(given[entry.field.name])
            for entry in _list_entries(options)
        }
    )


def write_words(options: object) -> list[str]:
    """The words of a command line that give these options; nothing is written for a default."""
    words: list[str] = []
    for entry in _list_entries(type(options)):
        value = getattr(options, entry.field.name)
        words += write_words(value) if is_dataclass(entry.type) else entry.write(value)
    return words


def make_command(options: type, action: str) -> Callable[..., None]:
    """A function with the parameters, types and help of which Typer makes a command.

    Args:
        options: A dataclass of options, whose docstring is the help.
        action: What takes them and a console, and returns the exit code if it is not 0, as
            `package.module:function`; imported when the command is called.

    Example:
        >>> from seepage._options import RunOptions
        >>> import inspect
        >>> list(inspect.signature(make_command(RunOptions, "my_package:act")).parameters)[:3]
        ['device', 'executor', 'workers']
    """

    def command(**given: Any) -> None:  # noqa: ANN401
        asked = _build(options, given)
        module, _, name = action.partition(":")
        raise typer.Exit(getattr(import_module(module), name)(asked, make_console()) or 0)

    parameters = [entry.parameter for entry in _list_options(options)]
    command.__name__ = options.__name__.lower()
    command.__doc__ = options.__doc__
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command
