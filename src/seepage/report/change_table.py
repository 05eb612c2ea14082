"""What changed between two audits, as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from seepage.report.change import Change, Direction
from seepage.report.leak import Attempt
from seepage.report.words import behind, decibels, short_names

SHOWN = 20
STYLES = {Direction.worse: "bold red", Direction.better: "green"}


def change_table(found: Sequence[Change]) -> Table:
    """One line per person, defense and attack that changed, the worst first.

    Args:
        found: From `changes`; with many of them the first are shown.
    """
    changed = [change for change in found if change.direction in STYLES]
    left = len(changed) - SHOWN
    table = Table(
        title="What changed, worst first",
        caption=f"and {left} more" if left > 0 else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in ("person", "behind", "attack"):
        table.add_column(column, overflow="fold")
    for column in ("before", "now", ""):
        table.add_column(column, justify="right", no_wrap=True)
    short = short_names(change.attack for change in found)
    for change in changed[:SHOWN]:
        table.add_row(
            # As text: a name from a spec may look like markup.
            Text("{} #{}".format(*change.victim)),
            Text(behind(change.defense)),
            Text(short[change.attack]),
            _psnr(change.before),
            _psnr(change.after),
            Text(str(change.direction), style=STYLES[change.direction]),
        )
    return table


def _psnr(attempt: Attempt | None) -> str:
    return decibels(None if attempt is None else attempt.psnr)
