"""The people of a reproduced table, and what came back of them, cell by cell."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from seepage.audit import Outcome
from seepage.core._grouping import group_by
from seepage.report._contact_sheet import (
    SHOWN,
    PictureStrip,
    SheetBlock,
    draw,
    guess_strip,
    truth_strip,
)
from seepage_papers.sources import Audited
from seepage_papers.table import Cell, PaperTable

if TYPE_CHECKING:
    from PIL import Image as Pillow

TILE, WIDEST, LETTERS = 64, 1_600, 24
COLOURS, BYTES = 128, 300_000


def save_pictures(table: PaperTable, scale: str, audited: Audited, path: Path) -> bool:
    """Draw a column of pictures for each column of a table, and tell whether there were any.

    As many people are shown as a small file holds, at most eight of each cell.
    """
    found = {cell: _shown(table, number, audited) for number, cell in enumerate(table.cells(scale))}
    if not any(found.values()):
        return False
    people = SHOWN
    while len(drawn := _png(_sheet(table, found, people))) > BYTES and people > 1:
        people //= 2
    path.write_bytes(drawn)
    return True


def _shown(table: PaperTable, cell: int, audited: Audited) -> list[Outcome]:
    """The first repetition of a cell, where people can see what came back."""
    block = next(block for block in table.published if block.by == "audit")
    outcomes = audited.outcomes(cell, block)
    return [
        o
        for o in outcomes
        if o.truth is not None and o.truth.ndim > 2 and o.record.seed == outcomes[0].record.seed
    ]


def _sheet(table: PaperTable, found: dict[Cell, list[Outcome]], people: int) -> Pillow.Image:
    columns = group_by(found, lambda cell: cell.column)
    blocks = [
        SheetBlock(cells[0].labels[1] or table.title, _strips(cells, found, people))
        for cells in columns.values()
        if any(found[cell] for cell in cells)
    ]
    wide = max(block.size(TILE)[0] for block in blocks)
    return draw(blocks, tile=TILE, across=max(WIDEST // wide, 1))


def _strips(
    cells: list[Cell], found: dict[Cell, list[Outcome]], people: int
) -> tuple[PictureStrip, ...]:
    """What came back in each row; the truth above the first row of the same people."""
    strips: list[PictureStrip] = []
    whom: list[str] = []
    for cell in cells:
        outcomes = found[cell]
        truth = truth_strip(outcomes, shown=people)
        if truth is not None and whom != (whom := [o.record.truth for o in outcomes]):
            strips.append(truth)
        label = textwrap.fill(cell.labels[0], LETTERS) or "came back"
        strips.append(guess_strip(label, outcomes, shown=people))
    return tuple(strips)


def _png(sheet: Pillow.Image) -> bytes:
    kept = io.BytesIO()
    sheet.quantize(COLOURS).save(kept, format="png", optimize=True)
    return kept.getvalue()
