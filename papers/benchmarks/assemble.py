"""A table whose cells other tables have: `python -m benchmarks.assemble NAME --of RECORD ...`.

Figures of a paper often show what its tables print. A cell is taken from the first record that has
one with the same data, network, client, threat and attack, all to the letter; nothing is run. The
record names those it was put together from, and the pictures stay with them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.papers import FOLDER
from seepage.report import Interval
from seepage_papers.lines import Line
from seepage_papers.reading import load_table
from seepage_papers.reproduction import Reproduction
from seepage_papers.table import Cell, PaperTable, Published

Record = dict[str, Any]
Key = tuple[str, str, str]


def find_cells(table: PaperTable, scale: str) -> list[Cell]:
    """Every cell, those too that the scale leaves out."""
    values = {k: v for k, v in table.at(scale).items() if k not in ("rows", "columns")}
    return replace(table, scales={scale: values}).cells(scale)


def read_lines(record: Record) -> dict[Key, Record]:
    """The numbers of a record by scenario, measure and statistic."""
    cells = find_cells(load_table(record["name"]), record["scale"])
    scenarios = {cell.labels: json.dumps(cell.scenario, sort_keys=True) for cell in cells}
    return {
        (scenarios[line["row"], line["column"]], line["measure"], line["statistic"]): line
        for line in record["lines"]
        if line["seepage"] is not None
    }


def find_lines(table: PaperTable, scale: str, known: dict[Key, Record]) -> Iterator[Line]:
    """The lines of a table, as far as there are numbers for them."""
    for block in table.published:
        for cell in find_cells(table, scale):
            key = (json.dumps(cell.scenario, sort_keys=True), block.measure, block.statistic)
            if key in known:
                yield _move(known[key], table, cell, block)


def _move(line: Record, table: PaperTable, cell: Cell, block: Published) -> Line:
    moved = {k: v for k, v in line.items() if k != "difference"}
    moved["row"], moved["column"] = cell.labels
    moved["paper"] = block.value(cell.row, cell.column)
    low, high = line["interval"] or (None, None)
    moved["interval"] = None if low is None else Interval(low, line["seepage"], high)
    said = (table.rows[cell.row].why, table.columns[cell.column].why)
    return Line(**{**moved, "why": " ".join(why for why in said if why)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--of", type=Path, nargs="+", required=True, help="records of one scale")
    options = parser.parse_args()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in options.of]
    known: dict[Key, Record] = {}
    for record in records:
        known = read_lines(record) | known
    table, scale = load_table(options.name), records[0]["scale"]
    lines = list(find_lines(table, scale, known))
    if not lines:
        raise SystemExit(f"expected cells of {options.name} in these records, found none")
    seconds = sum(record["seconds"] for record in records)
    first = {key: records[0][key] for key in ("command", "commit", "machine")}
    parts = [f"{r['name']} (`{r['command']}`, {r['commit']})" for r in records]
    told = {
        "exit_code": 0,
        "wall": round(sum(record["wall"] for record in records), 1),
        "cpu": None,
    }
    made = Reproduction(table, scale, lines, seconds).plain()
    note = {"note": f"Put together from cells of {' and '.join(parts)}."}
    path = FOLDER / f"{options.name}-{scale}.json"
    path.write_text(
        json.dumps({**first, **told, **made, **note}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"{path.name}: {len(lines)} numbers")


if __name__ == "__main__":
    main()
