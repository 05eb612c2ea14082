"""The command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_command

from seepage.cli.audit_command import NetworkOptions, audit
from seepage.cli.display import plain_warnings
from seepage.cli.inspect_command import inspect_models
from seepage.cli.list_command import Kind, catalogue
from seepage.cli.report_command import Format
from seepage.cli.report_command import report as write_report
from seepage.cli.run_audit import BAD_USAGE, INTERRUPTED
from seepage.cli.vet_command import Received, vet_model
from seepage.core.errors import InvalidValue, MissingExtra, SeepageError
from seepage.core.plugins import Catalogue
from seepage.core.version import __version__

if TYPE_CHECKING:
    import click

# Commands of packages that are not installed with this one, and what to install.
_ELSEWHERE = {
    "reproduce": "pip install seepage-papers, or in a checkout: pip install -e papers",
}


class Commands(TyperGroup):
    """Our own commands, and those of installed packages, which are imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, our own first."""
        return list(self._catalogue())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; one that is known and not installed says what to install."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        known = self._catalogue()
        if cmd_name not in known and cmd_name in _ELSEWHERE:
            return _not_installed(cmd_name, _ELSEWHERE[cmd_name])
        return known.get(cmd_name)

    def _catalogue(self) -> Catalogue[click.Command]:
        return Catalogue("command", "seepage.commands", self.commands, adapt=_command)


def _command(name: str, found: Any) -> click.Command:  # noqa: ANN401
    """A command, made of a function with Typer's annotations or of a Typer application."""
    if isinstance(found, typer.Typer):
        return get_command(found)
    if not callable(found):
        raise InvalidValue(f"expected a function or a Typer application, got {found!r}")
    return _single(name, found)


def _not_installed(name: str, install: str) -> click.Command:
    def refuse(_context: typer.Context) -> None:
        raise MissingExtra(f"`seepage {name}` is in a package of its own: {install}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return _single(name, refuse, context_settings=anything, add_help_option=False)


def _single(
    name: str,
    function: Callable[..., object],
    *,
    context_settings: dict[str, bool] | None = None,
    add_help_option: bool = True,
) -> click.Command:
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    holder.command(name, context_settings=context_settings, add_help_option=add_help_option)(
        function
    )
    return get_command(holder)


app = typer.Typer(
    name="seepage",
    cls=Commands,
    help="Measures what a shared gradient gives away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seepage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Measures what a shared gradient gives away."""


app.command()(audit)


class Printed(StrEnum):
    """How to print."""

    text = "text"
    json = "json"


@app.command()
def inspect(
    models: Annotated[
        list[str], typer.Argument(help="Networks of the zoo, or package.module:factory.")
    ],
    option: NetworkOptions = None,
    shape: Annotated[
        str | None, typer.Option(help="Of one input: 3x32x32 if not given, 1x140 for signals.")
    ] = None,
    numerical: Annotated[
        bool, typer.Option("--numerical", help="Compute ranks, which takes memory and minutes.")
    ] = False,
    form: Annotated[Printed, typer.Option("--format", help="How to print.")] = Printed.text,
) -> None:
    """Say what an architecture gives away: its rank metric, and counts of its first layer."""
    sys.path.insert(0, str(Path.cwd()))
    inspect_models(
        models,
        options=option or [],
        shape=shape,
        numerical=numerical,
        as_json=form is Printed.json,
        console=Console(),
    )


@app.command()
def vet(
    model: Annotated[str, typer.Argument(help="A network of the zoo, or package.module:factory.")],
    option: NetworkOptions = None,
    weights: Annotated[
        Path | None, typer.Option(help="The weights that were received: .safetensors or .pt.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data of your own to run it on, as in seepage list data.")
    ] = None,
    people: Annotated[int, typer.Option(min=1, help="How many examples of that to use.")] = 16,
    shape: Annotated[
        str | None, typer.Option(help="Of one input: that of the data, or 3x32x32, if not given.")
    ] = None,
    form: Annotated[Printed, typer.Option("--format", help="How to print.")] = Printed.text,
) -> None:
    """Say whether a network that was received looks as if its server wanted to read the update.

    Exit codes: 0 clean, 2 bad usage, 3 suspicious, 4 malicious.
    """
    sys.path.insert(0, str(Path.cwd()))
    received = Received(
        model=model,
        options=option or [],
        weights=weights,
        shape=shape,
        data=data,
        people=people,
    )
    raise typer.Exit(vet_model(received, as_json=form is Printed.json, console=Console()))


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(help="The directory of an audit, or two to compare.")
    ],
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.html,
    out: Annotated[
        Path | None,
        typer.Option(help="Where; by default report.* (or comparison.*) in the last directory."),
    ] = None,
    utility: Annotated[
        Path | None,
        typer.Option(help="JSON with what each defense is worth, drawn against what it lets out."),
    ] = None,
) -> None:
    """Write what an audit found, or what changed between two.

    Also of an audit that is still running or was broken off: the report says what is missing.
    """
    write_report(directories, form=form, out=out, utility=utility, console=Console())


@app.command(name="list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
) -> None:
    """List what a spec can name."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, line in catalogue(kind).items():
        table.add_row(name, Text(line))
    Console().print(table)


def main() -> None:
    """Run the command line; any error of ours is one sentence and exit code 2."""
    try:
        with plain_warnings():
            app()
    except SeepageError as error:
        Console(stderr=True).print(
            "seepage: " + " ".join(str(error).splitlines()),
            style="red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise SystemExit(BAD_USAGE) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
