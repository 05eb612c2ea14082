"""The command `seepage leaderboard` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seepage.cli.options import (
    Device,
    DeviceOption,
    DryRun,
    Effort,
    Overwrite,
    Plain,
    Quiet,
    Resume,
    Workers,
    make_console,
)


def leaderboard(
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("leaderboard"),
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOML",
            help="A further defense as a spec writes it, such as "
            "'[{ name = \"Prune\", ratio = 0.95 }]'; repeatable.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run only this line and no defense, by its name in the table; repeatable.",
        ),
    ] = None,
    points: Annotated[
        float, typer.Option(help="Percentage points of accuracy that a defense may cost.")
    ] = 1.0,
    effort: Annotated[Effort, typer.Option(help="How hard `auto` tries.")] = Effort.quick,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of `auto`, instead of those of --effort.")
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option("--smoke", help="A few steps on bundled digits, to see that it runs."),
    ] = False,
    device: DeviceOption = Device.auto,
    workers: Workers = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Rank defenses at equal utility by how much the strongest attack recovers.

    Networks, people, seeds and effort are fixed, so that anybody can add a line.

    Exit codes: 0 done, 1 a case failed, 2 bad usage.
    """
    # Only here: `seepage --help` shows this command, and should not wait for what it needs to run.
    from dataclasses import replace

    from seepage_papers.board import BOARD, SMOKE
    from seepage_papers.leaderboard import LeaderboardRequest, make_leaderboard

    base = SMOKE if smoke else BOARD
    board = replace(base, effort=effort.value, steps=base.steps if steps is None else steps)
    request = LeaderboardRequest(
        board=board,
        out=out,
        added=tuple(add or ()),
        only=tuple(only or ()),
        points=points,
        device=device.value,
        workers=workers,
        resume=resume,
        overwrite=overwrite,
        dry_run=dry_run,
        plain=plain,
        quiet=quiet,
    )
    raise typer.Exit(make_leaderboard(request, make_console()))
