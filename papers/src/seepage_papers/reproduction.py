"""A reproduced table, for the terminal, for Markdown and for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from seepage.report import markdown_table, markdown_words
from seepage_papers.judge import (
    BEATEN,
    FAILS,
    HOLDS,
    NO_PREMISE,
    NOISE,
    NOT_RUN,
    claims,
    judged,
)
from seepage_papers.lines import Line
from seepage_papers.measures import measure
from seepage_papers.substitute import Plain
from seepage_papers.table import PaperTable, Published

ABOUT = {
    "smoke": "A few steps on tiny networks: it shows that everything runs, and no number here says "
    "anything about the paper.",
    "small": "Smaller than the paper's in what is listed as different; all else is as printed.",
    "paper": "At the paper's scale, as far as the paper states it.",
}
COUNTED = "Nothing is trained or attacked: these are the paper's networks at every scale."
TOLD = {
    HOLDS: "This holds",
    FAILS: "This does not hold",
    BEATEN: "This is beaten",
    NOISE: "This is within noise",
    NO_PREMISE: "Its premise fails",
}
WORDS = ("cell", "measure", "why")
# What values of a scale are called, where their names do not say it.
CALLED = MappingProxyType(
    {
        "among": "images to choose from",
        "b": "batch size",
        "batch": "batch size",
        "crowd": "people in a large batch",
        "crowds": "people in large batches",
        "every": "steps between changes",
        "examples": "images to learn from",
        "hybrid": "steps of the hybrid by layer",
        "its": "iterations",
        "long": "steps on LeNet",
        "many": "local steps",
        "mixed": "people behind mixing",
        "ours": "steps of ours",
        "people_b": "people behind filters",
        "people_pooled": "people behind each pooling of the ResNet20-4",
        "one_cycle": "one cycle of the learning rate",
        "prior": "channels of the prior network",
        "rate": "step size",
        "restarts": "starts",
        "restarts_a": "starts on the ConvNet",
        "restarts_b": "starts on the ResNet",
        "schooled": "steps of training",
        "slow": "step size on LeNet",
        "steps_a": "steps on the ConvNet",
        "steps_b": "steps on the ResNet",
        "steps_pooled": "steps on the ResNet20-4",
        "told": "steps of ours",
        "w": "channels",
        "wide": "channels of the wide network",
        "width": "channels",
        "width_wang": "channels of the CNN of Wang et al.",
    }
)
ALWAYS = ("cell", "paper", "Seepage", "difference", "why")


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What came of a table at some scale."""

    table: PaperTable
    scale: str
    lines: Sequence[Line]
    seconds: float
    failed: Sequence[str] = ()

    @property
    def complete(self) -> bool:
        """Whether there is a number of ours wherever there should be one."""
        lacking = [line for line in self.lines if line.seepage is None]
        return not any(line.paper is not None or self.failed for line in lacking)

    @property
    def conventions(self) -> list[str]:
        """What the numbers are, in words."""
        kinds = {line.measure: measure(line.measure) for line in self.lines}
        told = []
        for name, kind in kinds.items():
            usual = "" if kind.function is None else f"; usual: {measure(kind.standard).words}"
            told.append(f"{name}: {kind.words}{usual}")
        return told

    @property
    def _is_counted(self) -> bool:
        """Whether its numbers are of networks alone, the same at every scale."""
        return all(block.by == "rank_metric" for block in self.table.published)

    @property
    def notes(self) -> list[str]:
        """What holds for the whole table: its scale, its conventions and why it may differ."""
        failed = [f"Failed: {reason}" for reason in self.failed]
        about = COUNTED if self._is_counted else ABOUT[self.scale]
        told = [f"{told}." for told in self.conventions]
        apart = different(self.table, self.table.at(self.scale)) if self.scale == "small" else []
        return [about, *apart, *told, *reasons(self.table), *self.verdicts, *failed]

    @property
    def verdicts(self) -> list[str]:
        """What became of the paper's claims; nothing where numbers say nothing about the paper."""
        if self.scale == "smoke" and not self._is_counted:
            return []
        values = dict(self.table.at(self.scale))
        run = {"scale": self.scale, "values": values, "lines": [x.plain() for x in self.lines]}
        found = [(c, judged(c, {c.table: run})) for c in claims() if c.table == self.table.name]
        return [
            f"{claim.says} {TOLD[verdict.word]}: {verdict.numbers}."
            for claim, verdict in found
            if verdict.word != NOT_RUN
        ]

    def plain(self) -> dict[str, Any]:
        """Everything as data that JSON can hold."""
        return {
            "name": self.table.name,
            "title": self.table.title,
            "paper": self.table.paper,
            "place": self.table.place,
            "claim": self.table.claim,
            "scale": self.scale,
            "values": dict(self.table.at(self.scale)),
            "notes": self.notes,
            "seconds": round(self.seconds, 1),
            "failed": list(self.failed),
            "header": self.header,
            "rows": self.rows,
            "lines": [line.plain() for line in self.lines],
        }

    def markdown(self) -> str:
        """The table with its conventions, and why numbers differ."""
        table = self.table
        notes = [f"{table.place} of {table.citation}", table.claim, *self.notes]
        lines = [f"# {table.name}: {markdown_words(table.title)}", ""]
        for note in notes:
            lines += [markdown_words(note), ""]
        return "\n".join([*lines, *markdown_table(self.header, self.rows)]) + "\n"

    def shown(self) -> Table:
        """The table for a terminal."""
        drawn = Table(
            title=f"{self.table.name}: {self.table.title} ({self.scale})",
            caption="\n".join(self.notes),
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for column in self.header:
            words = column in WORDS
            drawn.add_column(column, justify="left" if words else "right", no_wrap=not words)
        for row in self.rows:
            drawn.add_row(*map(Text, row))
        return drawn

    @property
    def header(self) -> list[str]:
        """Titles of the columns that say anything."""
        return [title for title, cells in self._columns().items() if _says(title, cells)]

    @property
    def rows(self) -> list[list[str]]:
        """The cells below the header, as text."""
        columns = self._columns()
        return [list(row) for row in zip(*(columns[title] for title in self.header), strict=True)]

    def _columns(self) -> dict[str, list[str]]:
        # A network without such a layer has no number in either.
        there = [x for x in self.lines if not self._is_counted or x.seepage is not None]
        rows = [_row(line) for line in there]
        return {title: [row[title] for row in rows] for title in rows[0]}


def different(table: PaperTable, here: Plain) -> list[str]:
    """How a run differs from scale `paper`, in a sentence; nothing where it does not.

    Args:
        table: What was made.
        here: The values of the run's scale; what a record lacks is newer than it.
    """
    there = table.at("paper")
    kept = {"rows": len(table.rows), "columns": len(table.columns)}
    apart = [
        f"{len(value)} of {kept[name]} {name}"
        if name in kept
        else f"{_said(_called(name), value)} instead of {there.get(name, 'another')}"
        for name, value in here.items()
        if value != there.get(name)
    ]
    return [f"Different from scale paper: {', '.join(apart)}."] if apart else []


def _said(name: str, value: object) -> str:
    """A count before its name, anything else behind it.

    Example:
        >>> _said("people", 8), _said("step size", 0.001)
        ('8 people', 'step size 0.001')
    """
    several = isinstance(value, int) and value > 1 and "size" not in name
    return f"{value} {name}" if several else f"{name} {value}"


def _called(name: str) -> str:
    """What a value of a scale is, for people.

    Example:
        >>> _called("steps"), _called("w2"), _called("people16")
        ('steps', 'channels', 'people in batches of 16')
    """
    stem = name.rstrip("0123456789")
    if stem == "people" and stem != name:
        return f"people in batches of {name.removeprefix(stem)}"
    return CALLED.get(stem, stem)


def reasons(table: PaperTable) -> list[str]:
    """Why numbers may differ or are not printed, once each; after the first with its measures."""
    of: dict[str, list[str]] = {}
    for block in table.published:
        if block.why:
            of.setdefault(block.why, []).append(_words(block))
    return [f"{', '.join(of[why])}: {why}" if number else why for number, why in enumerate(of)]


def _words(block: Published) -> str:
    words = measure(block.measure).words
    return words if block.statistic == "mean" else f"{words}, {block.statistic}"


def _says(title: str, cells: Sequence[str]) -> bool:
    """Whether a column is needed: one that is always there, or has something to tell apart."""
    if title == "measure":
        return len(set(cells)) > 1
    return title in ALWAYS or any(cells)


def _row(line: Line) -> dict[str, str]:
    kind, interval = measure(line.measure), line.interval
    digits, usual = kind.digits, measure(kind.standard or line.measure).digits
    what = line.measure if line.statistic == "mean" else f"{line.measure}, {line.statistic}"
    between = interval and f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
    return {
        "cell": ", ".join(label for label in (line.row, line.column) if label) or "-",
        "measure": what,
        "paper": "not printed" if line.paper is None else f"{line.paper:.{digits}f}",
        "Seepage": "-" if line.seepage is None else f"{line.seepage:.{digits}f}",
        "95 %": between or "",
        "difference": "" if line.difference is None else f"{line.difference:+.{digits}f}",
        "usual": "" if line.standard is None else f"{line.standard:.{usual}f}",
        "why": line.why,
    }
