"""The leaderboard as a table: in a terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from seepage.audit._words import count_noun, decibels
from seepage_papers.board import Board
from seepage_papers.standing import Standing, Tally


@dataclass(frozen=True)
class Standings:
    """The whole board: a defense may cost `points` percentage points of accuracy."""

    board: Board
    lines: Sequence[Standing]
    points: float
    device: str = "cpu"

    @property
    def free(self) -> float | None:
        """The accuracy without a defense."""
        return next((line.accuracy for line in self.lines if line.text == "[]"), None)

    def is_cheap(self, line: Standing) -> bool:
        """Whether a defense costs no more than the points."""
        lost = line.lost(self.free)
        # Accuracies are shares of a count, so that a point may come out as 1.0000000000000009.
        return lost is not None and lost <= self.points + 1e-9

    def blocks(self) -> dict[str, list[Standing]]:
        """The lines under their headings, the least leaking first; empty blocks are left out.

        Lines in which nobody was identified and somebody might have been stand apart, after those
        that were decided. Otherwise whoever is undecided counts as identified.
        """
        point = f"{self.points:g} point" + "s" * (self.points != 1)
        cheap, costly = f"within {point} of no defense", f"cost more than {point}"
        weak = ", inconclusive: the attack was too weak to tell"
        found: dict[str, list[Standing]] = {k: [] for k in (cheap, cheap + weak)}
        found |= {k: [] for k in (costly, costly + weak)}
        for line in sorted(self.lines, key=lambda one: (one.exposed, one.psnr, one.label)):
            title = cheap if self.is_cheap(line) else costly
            found[title + weak * (not line.status.decided)].append(line)
        return {title: lines for title, lines in found.items() if lines}

    @property
    def header(self) -> list[str]:
        """The titles of the columns."""
        sizes = self.board.batch_sizes
        told = [title for n in sizes for title in (f"identified, B={n}", f"PSNR, B={n}")]
        return ["defense", "accuracy", "lost", *told, "attack", "remarks"]

    def cells(self, line: Standing) -> list[str]:
        """One row of the table."""
        lost = line.lost(self.free)
        cells = [line.label, "-" if line.accuracy is None else f"{100 * line.accuracy:.1f} %"]
        cells.append("-" if lost is None else f"{round(lost, 1) + 0.0:+.1f}")  # never -0.0
        for size in self.board.batch_sizes:
            tally = line.tallies.get(size)
            missing = "does not fit" if size in line.unfit else "failed"
            cells += [missing, "-"] if tally is None else [tally.words(), _median(tally)]
        return [*cells, line.attack, line.remarks]

    @property
    def notes(self) -> list[str]:
        """How to read it."""
        board = self.board
        steps = count_noun(board.training_steps, "step")
        sizes = " and ".join(map(str, board.batch_sizes))
        return [
            f"Setting: {board.words}. {board.data}, {board.model['name']}, people from "
            f"#{board.start} on, {board.people} at each batch size B ({sizes}); the adversary does "
            f"not know the labels. Accuracy after {steps} behind the defense, at the best of "
            f"{count_noun(len(board.rates), 'learning rate')}.",
            "Identified: people whom the strongest attack picks out among strangers, with a 95 % "
            "interval over people. Undecided: not identified by an attack that is too weak to "
            "tell; they count as identified in the order of the lines. PSNR is the median, in dB.",
            "Masked: ignoring the defense recovered more in rehearsal than simulating it. Control "
            "computed, not searched: without the defense a closed form finds everybody, so nothing "
            "shows that the search behind the defense was strong enough.",
        ]

    def markdown(self) -> str:
        """The board as a file."""
        parts = [f"# Leaderboard, {self.board.words}"]
        rule = "|---|--:|--:|" + "--:|" * (len(self.header) - 5) + "---|---|"
        for title, lines in self.blocks().items():
            rows = ["| " + " | ".join(map(_escape, self.cells(line))) + " |" for line in lines]
            head = "| " + " | ".join(self.header) + " |"
            parts.append("\n".join([f"## {title.capitalize()}", "", head, rule, *rows]))
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def shown(self) -> Group:
        """The board in a terminal, a table for each block."""
        parts: list[Table | Text] = []
        for title, lines in self.blocks().items():
            table = Table(title=title, title_justify="left", title_style="bold", box=None)
            for number, name in enumerate(self.header):
                right = 0 < number < len(self.header) - 2
                table.add_column(name, justify="right" if right else "left", overflow="fold")
            for line in lines:
                table.add_row(*map(Text, self.cells(line)))
            parts.append(table)
        return Group(*parts, *(Text(note, style="dim") for note in self.notes))

    def plain(self) -> dict[str, Any]:
        """The board as data that JSON can hold, in the order of the table."""
        rows = [
            {"block": title, **line.plain(self.free)}
            for title, lines in self.blocks().items()
            for line in lines
        ]
        setting = self.board.plain()
        points = {"points": self.points, "device": self.device}
        return {"board": self.board.version, "setting": setting, **points, "rows": rows}


def _median(tally: Tally) -> str:
    return decibels(median(tally.psnr), unit=False)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|")
