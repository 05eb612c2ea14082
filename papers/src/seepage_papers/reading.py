"""The tables and figures there are, read from their files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seepage.core.errors import InvalidValue, UnknownName
from seepage_papers.table import Entry, PaperTable, Published

FOLDER = Path(__file__).parent / "papers"


def names() -> list[str]:
    """Every table and figure there is."""
    return sorted((path.stem for path in FOLDER.glob("*.toml")), key=_numbered)


def _numbered(name: str) -> list[str | int]:
    """What orders "fig9" before "fig10"."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def load_table(name: str) -> PaperTable:
    """Read the description of a table.

    Example:
        >>> load_table("003-table1").rows[0].label
        'Basic setup'

    Raises:
        UnknownName: There is none of that name.
    """
    if name not in names():
        raise UnknownName("reproduction", name, names())
    return parse_table(name, (FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def parse_table(name: str, text: str) -> PaperTable:
    """Make a table of its description."""
    plain = tomllib.loads(text)
    table = PaperTable(
        name=name,
        title=plain["title"],
        paper=plain["paper"],
        place=plain["place"],
        claim=plain["claim"],
        figure=plain.get("figure", "rows"),
        scenario=plain["scenario"],
        rows=[_entry(row) for row in plain.get("rows", [{}])],
        columns=[_entry(column) for column in plain.get("columns", [{}])],
        published=[Published(**block) for block in plain["published"]],
        scales=plain["scale"],
    )
    for block in table.published:
        _require_shape(table, block)
    return table


def _require_shape(table: PaperTable, block: Published) -> None:
    wanted = len(block.columns) or len(table.columns)
    shape = [len(row) for row in block.values]
    if shape and shape != [wanted] * len(table.rows):
        raise InvalidValue(
            f"expected {len(table.rows)} rows of {wanted} values of {block.measure} in "
            f"{table.name}, got rows of {shape}"
        )


def _entry(plain: Mapping[str, Any]) -> Entry:
    own = {key: plain[key] for key in ("label", "why", "cause", "ours", "set") if key in plain}
    return Entry(**own, change={k: v for k, v in plain.items() if k not in own})
