"""Options that several commands share, and what every command begins with."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

Device = StrEnum("Device", ["auto", "cpu", "cuda"])
Where = StrEnum("Where", ["local", "ray"])
CapturedForm = StrEnum("CapturedForm", ["gradient", "difference", "weights_after"])
Effort = StrEnum("Effort", ["quick", "standard", "thorough"])
Printed = StrEnum("Printed", ["text", "json"])
Format = StrEnum(
    "Format",
    [
        "html",
        "markdown",
        "csv",
        "json",
        "parquet",
        "pivot",
        "latex",
        "svg",
        "pdf",
        "junit",
        "sarif",
    ],
)
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


def make_console(*, stderr: bool = False) -> Console:
    """A console for the output, or for messages, of a command."""
    from seepage.cli.safe_console import SafeConsole

    return SafeConsole(stderr=stderr)


def import_from_here() -> None:
    """Let `package.module:factory` name modules in the current folder."""
    sys.path.insert(0, str(Path.cwd()))
