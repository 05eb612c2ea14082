"""The command `seepage leaderboard` and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from seepage._options import Device, Option, Overwrite, Resume, Workers, refuse
from seepage.cli._commands import Effort, Shown
from seepage.cli._parser import make_command


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """Rank defenses at equal utility by how much the strongest attack recovers.

    Networks, people, seeds and effort are fixed, so that anybody can add a line.

    Exit codes: 0 done, 1 a case failed, 2 bad usage.
    """

    out: Annotated[Path, Option("Output directory.")] = Path("leaderboard")
    add: Annotated[
        tuple[str, ...],
        Option(
            "A further defense as a spec writes it, such as "
            "'[{ name = \"Prune\", ratio = 0.95 }]'; repeatable.",
            metavar="TOML",
        ),
    ] = ()
    only: Annotated[
        tuple[str, ...],
        Option(
            "Run only this line and no defense, by its name in the table; repeatable.",
            metavar="NAME",
        ),
    ] = ()
    points: Annotated[float, Option("Percentage points of accuracy that a defense may cost.")] = 1.0
    effort: Annotated[Effort, Option("How hard `auto` tries.")] = "quick"
    steps: Annotated[
        int | None, Option("Steps of `auto`, instead of those of --effort.", least=1)
    ] = None
    smoke: Annotated[
        bool, Option("A few steps on bundled digits, to see that it runs.", flags="--smoke")
    ] = False
    device: Device = "auto"
    workers: Workers = None
    resume: Resume = False
    overwrite: Overwrite = False
    shown: Shown = field(default_factory=Shown)

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        if self.resume and self.overwrite:
            refuse("expected --resume or --overwrite, got both; choose one")
        if not self.points >= 0:
            refuse(f"expected --points >= 0, got {self.points!r}")


leaderboard = make_command(Leaderboard, "seepage_papers.leaderboard:make_leaderboard")
