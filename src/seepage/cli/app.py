"""The command line: `seepage audit`, `report`, `inspect`, `vet` and `list`.

Only Typer is imported here. Each command imports what it needs when it is called, so that
`seepage --help` and `seepage --version` do not wait for torch.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

from seepage import __version__

if TYPE_CHECKING:
    import click
    from rich.console import Console

    from seepage.core.plugins import Catalogue

BAD_USAGE, INTERRUPTED = 2, 130

# Commands of other packages, and how to install them.
_PAPERS = "pip install seepage-papers, or in a checkout: pip install -e papers"
_ELSEWHERE = {"leaderboard": _PAPERS, "reproduce": _PAPERS}
_GROUP = "seepage.commands"


class _Commands(TyperGroup):
    """Our own commands, and those of installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List every command, our own first."""
        found = entry_points(group=_GROUP)
        names = [*self.commands, *sorted(found.names)]
        is_clear = len(names) == len(self.commands) + len(found) == len(set(names))
        if is_clear and all(_load_command(entry) for entry in found):
            return names
        # The catalogue warns of what is wrong with a package, and leaves the command out.
        return list(self._catalogue())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; one of a package that is not installed says what to install."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        registered = entry_points(group=_GROUP, name=cmd_name)
        if len(registered) == 1 and (found := _load_command(next(iter(registered)))):
            return found
        if not registered and cmd_name in _ELSEWHERE:
            return _refuse_command(cmd_name, _ELSEWHERE[cmd_name])
        return self._catalogue().get(cmd_name) if registered else None

    def _catalogue(self) -> Catalogue[click.Command]:
        from seepage.core.plugins import Catalogue

        return Catalogue("command", _GROUP, self.commands, adapt=_make_command)


def _load_command(entry: EntryPoint) -> click.Command | None:
    """Import a command of another package; None if that fails."""
    try:
        return _make_command(entry.name, entry.load())
    except (Exception, SystemExit):  # noqa: BLE001 - the catalogue says what is wrong
        return None


def _make_command(name: str, found: Any) -> click.Command:  # noqa: ANN401
    """Make a command of a function with Typer's annotations, or of a Typer application."""
    if isinstance(found, typer.Typer):
        return get_command(found)
    if not callable(found):
        from seepage.core.errors import InvalidValue

        raise InvalidValue(f"expected a function or a Typer application, got {found!r}")
    return _make_single(name, found)


def _refuse_command(name: str, install: str) -> click.Command:
    """Make a command that takes anything and says which package to install."""

    def refuse(_context: typer.Context) -> None:
        from seepage.core.errors import MissingExtra

        raise MissingExtra(f"`seepage {name}` is in a package of its own: {install}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return _make_single(name, refuse, context_settings=anything, add_help_option=False)


def _make_single(name: str, function: Callable[..., object], **settings: Any) -> click.Command:  # noqa: ANN401
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    holder.command(name, **settings)(function)
    return get_command(holder)


app = typer.Typer(
    name="seepage",
    cls=_Commands,
    help="Measures what a shared gradient gives away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seepage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Measures what a shared gradient gives away."""


def _make_console(*, stderr: bool = False) -> Console:
    from seepage.cli.safe_console import SafeConsole

    return SafeConsole(stderr=stderr)


Device = StrEnum("Device", ["auto", "cpu", "cuda"])
Where = StrEnum("Where", ["local", "ray"])
_CapturedForm = StrEnum("_CapturedForm", ["gradient", "difference", "weights_after"])
Effort = StrEnum("Effort", ["quick", "standard", "thorough"])
Printed = StrEnum("Printed", ["text", "json"])
Format = StrEnum("Format", ["html", "markdown", "csv", "json", "parquet"])
Kind = StrEnum(
    "Kind", ["attacks", "bounds", "risks", "defenses", "locals", "models", "data", "metrics"]
)

DeviceOption = Annotated[Device, typer.Option(help="Device to train and attack on.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of worker processes; a GPU takes one."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Skip cases that already have a result in --out.")
]
Overwrite = Annotated[bool, typer.Option(help="Replace the audit in --out.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the cases and estimate the time; run nothing.")
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print lines for a log instead of a progress bar.")
]
Quiet = Annotated[bool, typer.Option(help="Show only the result, no progress.")]
PrintedOption = Annotated[Printed, typer.Option("--format", help="Output format.")]
NetworkOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An argument of the model, as key=value; repeatable."),
]


@app.command()
def audit(
    spec: Annotated[
        Path | None, typer.Argument(help="A spec in TOML; the bundled quickstart by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("seepage-audit"),
    capture: Annotated[
        Path | None,
        typer.Option(help="Attack this captured update instead of a spec; needs --model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that is trained: a model name, or package.module:factory."),
    ] = None,
    option: NetworkOptions = None,
    data: Annotated[
        str | None,
        typer.Option(help="Attack --model on people of this data set; see `seepage list data`."),
    ] = None,
    people: Annotated[
        int | None, typer.Option(min=1, help="How many people of --data to attack; 4 by default.")
    ] = None,
    effort: Annotated[
        Effort | None,
        typer.Option(help="How hard to attack --model or --capture; quick by default."),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(help="With --capture, a data set like the private data, for rehearsals."),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="The private batch of the capture; used only for scoring."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels the adversary knows, e.g. 3,5; inferred by default.")
    ] = None,
    form: Annotated[
        _CapturedForm | None,
        typer.Option(help="Read the captured update as this, whatever its file says."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Input shape, e.g. 3x32x32; needed only if the capture does not record it."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size; of a capture, only if it does not record it."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps in all, instead of those of --effort."),
    ] = None,
    device: DeviceOption = Device.auto,
    executor: Annotated[
        Where, typer.Option(help="Run cases on this machine, or on a Ray cluster.")
    ] = Where.local,
    workers: Workers = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Exit with code 3 if more people than this are identified (identified=0), or if "
            "anybody's score is beyond this value and beats the best guess without an update: "
            "above it for psnr, below it for lpips. Repeatable.",
        ),
    ] = None,
    fail_if_inconclusive: Annotated[
        bool,
        typer.Option(
            "--fail-if-inconclusive",
            help="Exit with code 4 if the attacks were too weak to tell.",
        ),
    ] = False,
    fail_if_worse: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Exit with code 3 if more leaks than in this earlier audit, beyond noise.",
        ),
    ] = None,
    resume: Resume = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume, run failed cases again.")
    ] = False,
    overwrite: Overwrite = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Seconds that a case may take; then it is ended and recorded as failed."
        ),
    ] = None,
    no_truth: Annotated[
        bool,
        typer.Option("--no-truth", help="Store scores only: no private inputs and no guesses."),
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="With --resume, import what the spec of somebody else's audit names."
        ),
    ] = False,
    dry_run: DryRun = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Run every attack in a spec and show what leaked.

    Instead of a spec, --model with --data attacks people of a data set, and --model with --capture
    attacks a captured update; both by the strongest attack that fits.

    Exit codes: 0 done, 1 a case failed, 2 bad usage or spec, 3 somebody leaked beyond --fail-above
    or more than before, 4 inconclusive.
    """
    from seepage.audit.choices import Gate
    from seepage.cli.capture_command import CaptureRequest, ModelRequest
    from seepage.cli.run_audit import AuditRequest, run_request
    from seepage.core.errors import InvalidValue

    if capture is not None and model is None:
        raise InvalidValue("--capture needs --model, the model that was trained; give both")
    if data is not None and model is None:
        raise InvalidValue("--data needs --model, the model to attack; give both")
    chosen: dict[str, Any] = {
        "model": model,
        "option": option,
        "batch_size": batch_size,
        "effort": effort and effort.value,
        "steps": steps,
    }
    of_capture: dict[str, Any] = {
        "truth": truth,
        "labels": labels,
        "form": form and form.value,
        "shape": shape,
        "public": public,
    }
    _refuse_extra(chosen if model is None else {}, "--model")
    _refuse_extra(of_capture if capture is None else {}, "--capture")
    _refuse_extra({"people": people} if data is None else {}, "--data")
    if (data is None) == (capture is None) and model is not None:
        raise InvalidValue("expected --model with --data, or --model with --capture")
    given = {name: value for name, value in chosen.items() if value is not None}
    _import_from_here()
    request = AuditRequest(
        spec=spec,
        out=out,
        device=device.value,
        executor=executor.value,
        workers=workers,
        gates=tuple(map(Gate.parse, fail_above or ())),
        resume=resume,
        retry_failed=retry_failed,
        overwrite=overwrite,
        dry_run=dry_run,
        plain=plain,
        quiet=quiet,
        capture=(None if capture is None else CaptureRequest(file=capture, **given, **of_capture)),
        network=None if data is None else ModelRequest(data=data, people=people, **given),
        fail_if_inconclusive=fail_if_inconclusive,
        baseline=fail_if_worse,
        timeout=timeout,
        keep_private=not no_truth,
        trust=trust,
    )
    raise typer.Exit(run_request(request, _make_console()))


def _refuse_extra(options: Mapping[str, object], needed: str) -> None:
    """Raise `InvalidValue` if an option is given without the one that it goes with."""
    from seepage.core.errors import InvalidValue

    for name, value in options.items():
        if value is not None:
            raise InvalidValue(f"--{name.replace('_', '-')} needs {needed}, which is missing")


def _import_from_here() -> None:
    """Let `package.module:factory` name modules in the current folder."""
    sys.path.insert(0, str(Path.cwd()))


@app.command()
def inspect(
    models: Annotated[list[str], typer.Argument(help="Model names, or package.module:factory.")],
    option: NetworkOptions = None,
    shape: Annotated[
        str | None, typer.Option(help="Input shape, e.g. 3x32x32 (the default), or 1x140.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(help="For texts: length and vocabulary, e.g. 128x30522."),
    ] = None,
    numerical: Annotated[
        bool, typer.Option("--numerical", help="Compute ranks; takes memory and minutes.")
    ] = False,
    form: PrintedOption = Printed.text,
) -> None:
    """Say what an architecture gives away: ranks and counts of its layers, or words of texts."""
    from seepage.cli.model_commands import inspect_models

    _import_from_here()
    inspect_models(
        models,
        options=option or [],
        shape=shape,
        tokens=tokens,
        numerical=numerical,
        as_json=form is Printed.json,
        console=_make_console(),
    )


@app.command()
def vet(
    model: Annotated[str, typer.Argument(help="A model name, or package.module:factory.")],
    option: NetworkOptions = None,
    weights: Annotated[
        Path | None, typer.Option(help="The received weights: .safetensors or .pt.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Your own data to run the model on; see `seepage list data`."),
    ] = None,
    people: Annotated[int, typer.Option(min=1, help="Number of examples to use.")] = 16,
    shape: Annotated[
        str | None,
        typer.Option(help="Input shape, e.g. 3x32x32; that of --data if not given."),
    ] = None,
    form: PrintedOption = Printed.text,
) -> None:
    """Check a received model for signs that the server wants to read the update.

    Exit codes: 0 clean, 2 bad usage, 3 suspicious, 4 malicious.
    """
    from seepage.cli.model_commands import vet_model

    _import_from_here()
    code = vet_model(
        model,
        options=option or [],
        weights=weights,
        shape=shape,
        data=data,
        people=people,
        as_json=form is Printed.json,
        console=_make_console(),
    )
    raise typer.Exit(code)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(help="The directory of an audit, or two to compare.")
    ],
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.html,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file; by default report.* (or comparison.*) in the last directory."
        ),
    ] = None,
    utility: Annotated[
        Path | None,
        typer.Option(help="JSON file with the utility of each defense, plotted against leakage."),
    ] = None,
) -> None:
    """Write the report of an audit, or compare two audits.

    The audit may still be running or may have been interrupted: the report says what is missing.
    """
    from seepage.cli.report_command import write_report

    write_report(directories, form=form.value, out=out, utility=utility, console=_make_console())


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="The directory of an audit.")],
) -> None:
    """Check that an audit is as it was written: checksums, records and files.

    Exit codes: 0 whole, 1 something is missing or was altered, 2 no audit.
    """
    from seepage.cli.store_commands import verify_audit

    raise typer.Exit(verify_audit(directory, _make_console()))


@app.command()
def purge(
    directory: Annotated[Path, typer.Argument(help="The directory of an audit.")],
) -> None:
    """Remove the private inputs and the guesses of an audit, and keep its scores."""
    from seepage.cli.store_commands import purge_audit

    purge_audit(directory, _make_console())


@app.command(name="list")
def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List the names that a spec can use."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, line in _read_catalogue(kind).items():
        table.add_row(name, Text(line))
    _make_console().print(table)


def _read_catalogue(kind: Kind) -> dict[str, str]:
    """Return each name of a kind with one line about it, and the package if it is another's."""
    from seepage import data, scoring, zoo
    from seepage.bounds import BOUNDS
    from seepage.bounds.risk import RISKS
    from seepage.clients import LOCALS
    from seepage.data.load import NAMED
    from seepage.defenses import DEFENSES
    from seepage.rehearsal import ALL_ATTACKS

    parts: dict[str, Mapping[str, object]] = {
        "attacks": ALL_ATTACKS,
        "bounds": BOUNDS,
        "risks": RISKS,
        "defenses": DEFENSES,
        "locals": LOCALS,
        "models": zoo.MODELS,
        "data": NAMED,
        "metrics": scoring.METRICS,
    }
    described = {"models": zoo.catalogue, "data": data.catalogue, "metrics": scoring.catalogue}
    known = parts[kind]
    lines = described[kind]() if kind in described else _read_lines(known)
    origin = getattr(known, "origin", lambda _: None)
    return {
        name: f"{line} [{package}]".strip() if (package := origin(name)) else line
        for name, line in lines.items()
    }


def _read_lines(parts: Mapping[str, object]) -> dict[str, str]:
    """Read the first line about each part, and the key of every paper it cites."""
    lines = {}
    for name, part in parts.items():
        text = part.__doc__ or ""
        keys = dict.fromkeys(re.findall(r"\(([a-z]+\d{4}[a-z]+)\)", text))
        first = text.strip().partition("\n")[0]
        lines[name] = f"{first} ({', '.join(keys)})" if keys else first
    return lines


def main() -> None:
    """Run the command line; an error of ours becomes one sentence and exit code 2."""
    from seepage.cli.signals import exit_code, exit_on_signals

    try:
        with exit_on_signals(), _warn_in_sentences():
            app()
    except KeyboardInterrupt:
        raise SystemExit(exit_code(INTERRUPTED)) from None
    except SystemExit as ended:
        # Typer has one code for every interrupt.
        raise SystemExit(
            exit_code(INTERRUPTED) if ended.code == INTERRUPTED else ended.code
        ) from None
    except Exception as error:
        from seepage.core.errors import SeepageError

        if not isinstance(error, SeepageError):
            raise
        _print_to_stderr("seepage: " + " ".join(str(error).splitlines()), style="red")
        raise SystemExit(BAD_USAGE) from None


_show_as_python = warnings.showwarning


@contextmanager
def _warn_in_sentences() -> Iterator[None]:
    """Show our own warnings as one sentence each; others stay as they are."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        yield


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if category.__module__.startswith("seepage."):
        _print_to_stderr(f"seepage: warning: {message}", style="yellow")
    else:
        _show_as_python(message, category, filename, lineno, file, line)


def _print_to_stderr(sentence: str, *, style: str) -> None:
    console = _make_console(stderr=True)
    console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)
