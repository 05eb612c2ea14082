"""The command `seepage reproduce` and its options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from seepage.cli.options import (
    Device,
    DeviceOption,
    DryRun,
    Overwrite,
    Plain,
    Quiet,
    Resume,
    Workers,
    make_console,
)


class Scale(StrEnum):
    """How large."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure, such as 003-table1.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all, with what they cost.")] = False,
    scale: Annotated[
        Scale, typer.Option(help="smoke: minutes on a CPU; small: on one GPU; paper: in full.")
    ] = Scale.smoke,
    out: Annotated[
        Path | None, typer.Option(help="Output directory; NAME-SCALE if not given.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Make only the row of this label; may be repeated.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Make only the column of this label; may be repeated.")
    ] = None,
    device: DeviceOption = Device.auto,
    workers: Workers = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table or figure of a paper: its numbers, ours, and why they differ.

    Exit codes: 0 done, 1 a number is missing because its cases failed, 2 bad usage.
    """
    # Only here: `seepage --help` shows this command, and should not wait for what it needs to run.
    from seepage_papers.reproduce import Wish, list_tables
    from seepage_papers.reproduce import reproduce as run_reproduction

    if listed or name is None:
        list_tables(make_console())
        return
    wish = Wish(
        name=name,
        scale=scale.value,
        out=out or Path(f"{name}-{scale.value}"),
        device=device.value,
        workers=workers,
        resume=resume,
        overwrite=overwrite,
        dry_run=dry_run,
        plain=plain,
        quiet=quiet,
        rows=tuple(row or ()),
        columns=tuple(column or ()),
    )
    raise typer.Exit(run_reproduction(wish, make_console()))
