"""How an audit shows that it is alive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from seepage.audit import AnyCase, Record
from seepage.core.progress import listen
from seepage.report import amounts, decibels, defense_words, headrooms, most
from seepage.report.words import count_noun

# A log hears of a search that takes longer than this before it is done.
SECONDS_PER_LINE = 60.0


class Display:
    """Shows the case in hand, its objective, and the worst leak so far."""

    def __init__(
        self, console: Console, *, total: int, done: Sequence[Record] = (), plain: bool = False
    ) -> None:
        """Prepare a bar for `total` cases, or lines of a log if `plain` or not on a terminal."""
        self._console = console
        self._plain = plain or not console.is_terminal
        self._worst = most(amount for record in done for amount in amounts(record))
        self._done = len(done)
        self._total = total
        self._case, self._told = "", time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=self._plain,
        )
        self._task = self._bar.add_task("auditing", total=total, completed=len(done), note="")

    @contextmanager
    def showing(self) -> Iterator[Display]:
        """Draw the bar, and listen to attacks, inside the block."""
        with self._bar, listen(self._heard):
            yield self

    def started(self, case: AnyCase) -> None:
        """Say which case begins."""
        self._case = str(case)
        self._bar.update(self._task, description=escape(self._case))

    def finished(self, record: Record) -> None:
        """Count a case; a log gets a line of its own for each, and one now and then between."""
        found = amounts(record)
        self._worst = most([self._worst, *found])
        self._done += 1
        self._bar.update(self._task, completed=self._done, note=f"worst {self._worst.words()}")
        if self._plain:
            best = record.error or (_allowed(record) if record.bound else most(found).words())
            people = ", ".join(f"#{person}" for person in record.people)
            self._line(
                f"[{self._done}/{self._total}] {record.data} {people} {record.attack} "
                f"behind {defense_words(record.defense)}: {best}"
            )

    def _line(self, words: str) -> None:
        self._told = time.monotonic()
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)

    def _heard(self, step: int, steps: int, objective: float) -> None:
        where = f"step {step}/{steps}, objective {objective:.3g}"
        self._bar.update(self._task, note=f"{where}, worst {self._worst.words()}")
        if self._plain and time.monotonic() > self._told + SECONDS_PER_LINE:
            self._line(f"{self._case}: {where}")


class AuditProgress:
    """Shows on a console how `sp.audit.run` goes.

    Args:
        console: Where to print.
        quiet: Print only what needs attention.
        plain: Print lines for a log instead of a progress bar.
    """

    def __init__(self, console: Console, *, quiet: bool = False, plain: bool = False) -> None:
        """Print nothing yet."""
        self._console, self._plain = console, plain
        self._shown = Console(quiet=True) if quiet else console
        self._display: Display | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the audit is open, so that its results can be read."""
        return self._display is not None

    def begin(
        self, *, total: int, done: Sequence[Record], mended: Sequence[Path]
    ) -> AbstractContextManager[object]:
        """Say what is there already, and show a bar inside the block."""
        for path in mended:
            self._console.print(
                f"{path} was truncated and is made anew", style="yellow", markup=False
            )
        if done:
            are = count_noun(len(done), "case is", "cases are")
            self._shown.print(f"{are} done, {total - len(done)} to run")
        self._display = Display(self._shown, total=total, done=done, plain=self._plain)
        return self._display.showing()

    def started(self, case: AnyCase) -> None:
        """Show which case begins."""
        if self._display is not None:
            self._display.started(case)

    def finished(self, record: Record) -> None:
        """Count a case."""
        if self._display is not None:
            self._display.finished(record)


def _allowed(record: Record) -> str:
    """What a bound says, for the log."""
    [headroom] = headrooms([], [record])
    if not headroom.speaks:
        return f"says nothing: {'; '.join(headroom.remarks)}"
    return f"at most {decibels(max(person.ceiling for person in headroom.people))}"


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(0.2), duration(95), duration(7300)
        ('1 s', '1 min 35 s', '2 h 1 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
