"""The command `seepage reproduce` and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from seepage._options import Device, Option, Overwrite, Resume, Workers, refuse
from seepage.cli._commands import Shown
from seepage.cli._parser import make_command


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Reproduce a table or figure of a paper: its numbers, ours, and why they differ.

    Exit codes: 0 done, 1 a number is missing because its cases failed, 2 bad usage.
    """

    name: Annotated[str, Option("A table or figure, such as 003-table1.", is_argument=True)] = ""
    listed: Annotated[bool, Option("List all, with what they cost.", flags="--list")] = False
    scale: Annotated[
        Literal["smoke", "small", "paper"],
        Option("smoke: minutes on a CPU; small: on one GPU; paper: in full."),
    ] = "smoke"
    out: Annotated[Path | None, Option("Output directory; NAME-SCALE if not given.")] = None
    row: Annotated[
        tuple[str, ...], Option("Make only the row of this label; may be repeated.")
    ] = ()
    column: Annotated[
        tuple[str, ...], Option("Make only the column of this label; may be repeated.")
    ] = ()
    device: Device = "auto"
    workers: Workers = None
    resume: Resume = False
    overwrite: Overwrite = False
    shown: Shown = field(default_factory=Shown)
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        if self.resume and self.overwrite:
            refuse("expected --resume or --overwrite, got both; choose one")

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.out or Path(f"{self.name}-{self.scale}")


reproduce = make_command(Reproduce, "seepage_papers.reproduce:reproduce")
