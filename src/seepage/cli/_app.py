"""The command line: every command in one place, those of other packages included.

Only Typer is imported here. Each command imports what it needs when it is called, so that
`seepage --help` and `seepage --version` do not wait for torch.
"""

from __future__ import annotations

import errno
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

from seepage import __version__
from seepage.cli import _commands as commands
from seepage.cli._console import make_console
from seepage.cli._parser import make_command

if TYPE_CHECKING:
    from seepage.core._plugins import Catalogue

BAD_USAGE, INTERRUPTED = 2, 130
# Longer messages are cut, which takes an import.
_LONGEST = 1_500

# Commands of other packages, and how to install them.
_PAPERS = "pip install seepage-papers, or in a checkout: pip install -e papers"
_ELSEWHERE = {"leaderboard": _PAPERS, "reproduce": _PAPERS}
_GROUP = "seepage.commands"


class _Commands(TyperGroup):
    """Our own commands, and those of installed packages.

    The parser's own classes are named nowhere: Typer took them from the package click, and newer
    versions bring a copy.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: Any = None,  # noqa: ANN401
        **extra: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Read what stands before the command."""
        with _refuse_usage(info_name or self.name or ""):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Read what stands behind the command, and run it."""
        with _refuse_usage(ctx.command_path, ctx):
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        found = entry_points(group=_GROUP)
        names = [*self.commands, *sorted(found.names)]
        is_clear = len(names) == len(self.commands) + len(found) == len(set(names))
        if is_clear and all(_load_command(entry) for entry in found):
            return names
        # The catalogue warns of what is wrong with a package, and leaves the command out.
        return list(self._catalogue())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Return a command; one of a package that is not installed says what to install."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        registered = entry_points(group=_GROUP, name=cmd_name)
        if len(registered) == 1 and (found := _load_command(next(iter(registered)))):
            return found
        if not registered and cmd_name in _ELSEWHERE:
            return _refuse_command(cmd_name, _ELSEWHERE[cmd_name])
        return self._catalogue().get(cmd_name) if registered else None

    def _catalogue(self) -> Catalogue[Any]:
        from seepage.core._plugins import Catalogue

        return Catalogue("command", _GROUP, self.commands, adapt=_make_command)


@contextmanager
def _refuse_usage(path: str, ctx: typer.Context | None = None) -> Iterator[None]:
    """Say in one sentence what cannot be read and where its help is, instead of in a box."""
    try:
        yield
    except Exception as error:
        if not _is_bad_usage(error):
            raise
        # Some errors of the parser do not say in which command they are.
        found = getattr(error, "ctx", None)
        place = found.command_path if found else path
        if found is None and ctx is not None and ctx.invoked_subcommand:
            place = f"{path} {ctx.invoked_subcommand}"
        told = _tell_usage(error)
        # Nothing is left to say where the help was shown for want of a command.
        if told:
            _print_to_stderr(f"seepage: {told} (see `{place} --help`)", style="red")
        raise typer.Exit(BAD_USAGE) from None


def _is_bad_usage(error: Any) -> bool:  # noqa: ANN401
    """Say if the parser raised this because it cannot read the command line.

    Typer has no public name for the class of all such errors. Each has the exit code and a message.
    """
    return getattr(error, "exit_code", None) == BAD_USAGE and hasattr(error, "format_message")


def _tell_usage(error: Any) -> str:  # noqa: ANN401
    """Say in our words what is wrong with a command line.

    Example:
        >>> _tell_usage(typer.BadParameter("No such command 'adit'. Did you mean 'audit'?"))
        "invalid value: No such command 'adit'; did you mean 'audit'?"
    """
    if isinstance(error, typer.BadParameter) and error.param is not None:
        # Typer's name of an argument lists all that it can be.
        name = str(error.param.opts[0])
        name = name if name.startswith("-") else (error.param.name or "").upper()
        if not error.message:  # it is missing
            return f"expected {name}, got nothing"
        return f"{name}: {error.message[:1].lower()}{error.message[1:].rstrip('.')}"
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        near = " or ".join(map(repr, error.possibilities or ()))
        return f"no such option {error.option_name!r}" + (near and f"; did you mean {near}?")
    # Typer suggests commands in the message itself.
    said, *suggested = re.split(r"\.? \(?Did you mean ", error.format_message())
    said = said[:1].lower() + said[1:].rstrip(".")
    return f"{said}; did you mean {suggested[0].rstrip(').')}" if suggested else said


def _load_command(entry: EntryPoint) -> Any:  # noqa: ANN401
    """Import a command of another package; None if that fails."""
    try:
        return _make_command(entry.name, entry.load())
    except (Exception, SystemExit):  # noqa: BLE001 - the catalogue says what is wrong
        return None


def _make_command(name: str, found: Any) -> Any:  # noqa: ANN401
    """Make a command of a function with Typer's annotations, or of a Typer application."""
    if isinstance(found, typer.Typer):
        return get_command(found)
    if not callable(found):
        from seepage.core.errors import InvalidValue

        raise InvalidValue(f"expected a function or a Typer application, got {found!r}")
    return _make_single(name, found)


def _refuse_command(name: str, install: str) -> Any:  # noqa: ANN401
    """Make a command that takes anything and says which package to install."""

    def refuse(_context: typer.Context) -> None:
        from seepage.core.errors import MissingExtra

        raise MissingExtra(f"`seepage {name}` is in a package of its own: {install}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return _make_single(name, refuse, context_settings=anything, add_help_option=False)


def _make_single(name: str, function: Callable[..., object], **settings: Any) -> Any:  # noqa: ANN401
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    holder.command(name, rich_help_panel="From other packages", **settings)(function)
    return get_command(holder)


app = typer.Typer(
    name="seepage",
    cls=_Commands,
    epilog="Start with `seepage audit --out demo`: it runs a bundled example in minutes.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seepage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Measures what a shared gradient gives away."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(BAD_USAGE)


# Every command by the part of the help that lists it, with its options and what it does.
_COMMANDS: Mapping[str, Mapping[type, str]] = {
    "Audit": {
        commands.New: "_written_specs:write_new",
        commands.Audit: "_run_audit:run_audit",
        commands.Membership: "_membership_command:answer_membership",
        commands.Sweep: "_sweep_command:run_sweep",
    },
    "Results": {
        commands.Report: "_report_command:write_report",
        commands.Dossier: "_report_command:write_dossier",
        commands.Dashboard: "_report_command:write_dashboard",
        commands.Verify: "_report_command:verify_audit",
        commands.Purge: "_report_command:purge_audit",
    },
    "Before training": {
        commands.Inspect: "_model_commands:inspect_models",
        commands.Vet: "_model_commands:vet_model",
    },
    "Help": {
        commands.List: "_help_commands:list_parts",
        commands.Doctor: "_help_commands:diagnose",
    },
}
for _panel, _listed in _COMMANDS.items():
    for _options, _action in _listed.items():
        app.command(rich_help_panel=_panel)(make_command(_options, f"seepage.cli.{_action}"))


def main() -> None:
    """Run the command line; an error of ours becomes one sentence and exit code 2."""
    from seepage._signals import exit_code, exit_on_signals

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal or a log cannot show must not end an audit.
            stream.reconfigure(errors="backslashreplace")
    try:
        with exit_on_signals(), _warn_in_sentences():
            app(prog_name="seepage")
    except KeyboardInterrupt:
        raise SystemExit(exit_code(INTERRUPTED)) from None
    except SystemExit as ended:
        # Typer has one code for every interrupt.
        raise SystemExit(
            exit_code(INTERRUPTED) if ended.code == INTERRUPTED else ended.code
        ) from None
    except Exception as error:
        from seepage.core.errors import SeepageError

        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            error = SeepageError(f"no path can be {error.filename!r}: {error.strerror}")
        if not isinstance(error, SeepageError):
            raise
        _print_to_stderr(f"seepage: {error}", style="red")
        raise SystemExit(BAD_USAGE) from None


_show_as_python = warnings.showwarning
# Warnings that an audit may have of every noisy update; the first is shown.
_SHOWN_ONCE = frozenset(["NotToldApartWarning"])

# Warnings for those who write code, which its users cannot heed.
_FOR_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)


@contextmanager
def _warn_in_sentences() -> Iterator[None]:
    """Show warnings as one sentence each, unless somebody asks Python for them with -W."""
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, set())
        yield


def _show_warning(
    said: set[type[Warning] | str],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    ours = category.__module__.startswith("seepage.")
    if sys.warnoptions and not ours:
        _show_as_python(message, category, filename, lineno, file, line)
        return
    if issubclass(category, _FOR_DEVELOPERS):
        return
    sentence = " ".join(str(message).split())
    once = category.__name__ in _SHOWN_ONCE
    kind = category if once else sentence
    if kind not in said:
        said.add(kind)
        more = "; the same of other updates is not shown" * once
        _print_to_stderr(f"seepage: warning: {sentence}{more}", style="yellow")


def _print_to_stderr(sentence: str, *, style: str) -> None:
    if len(sentence) > _LONGEST:
        from seepage.core.errors import SeepageError

        sentence = str(SeepageError(sentence))
    console = make_console(stderr=True)
    console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)
