"""Floors and ceilings as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from seepage.report.bound_rows import COLUMNS, bound_rows
from seepage.report.headroom import Headroom
from seepage.report.words import short_names


def bound_table(found: Sequence[Headroom]) -> Table:
    """One line per bound that speaks, network and defense; `silences` tells of the others."""
    table = Table(
        title="What theory allows",
        caption="Of the person in the middle: the error per entry that no attack the bound speaks "
        "of goes below, and the PSNR it means. The report has the assumptions.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in COLUMNS:
        numeric = column in ("error at least", "PSNR at most")
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            max_width=8 if numeric else None,
        )
    rows = bound_rows([headroom for headroom in found if headroom.speaks])
    networks = short_names(row[0] for row in rows)
    for network, *row in rows:
        style = "bold red" if row[-1].startswith("BEATEN") else ""
        table.add_row(*(Text(cell, style=style) for cell in (networks[network], *row)))
    return table
