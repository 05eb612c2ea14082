"""Options that several commands have, declared once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Device(StrEnum):
    """Where to run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


DeviceOption = Annotated[Device, typer.Option(help="Where to train and attack.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that share the cores; on a card there is one."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Run only what --out has no result of.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what is in --out.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the cases and estimate the time; run nothing.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines for a log, no bar.")]
Quiet = Annotated[bool, typer.Option(help="No progress, only the result.")]
NetworkOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An argument of the network, as key=value; repeatable."),
]
