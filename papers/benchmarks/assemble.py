"""A table whose cells other records have: `python -m benchmarks.assemble NAME --of RECORD ...`.

Figures of a paper often show what its tables print, and a long table is made in parts. A cell is
taken from the records that have one with the same network, client, threat and attack, all to the
letter; where they attacked different people, these are put together. Nothing is run. The record
names those it was put together from, and the pictures stay with them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.papers import FOLDER, read_values
from seepage.report import Interval, mean_interval
from seepage_papers.lines import Line
from seepage_papers.measures import measure
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
    table, scale = load_table(record["name"]), record["scale"]
    values = {**table.at(scale), **record["values"]}
    cells = find_cells(replace(table, scales={scale: values}), scale)
    scenarios = {cell.labels: _name(cell) for cell in cells}
    return {
        (scenarios[line["row"], line["column"]], line["measure"], line["statistic"]): line
        for line in record["lines"]
        if line["seepage"] is not None
    }


def _name(cell: Cell) -> str:
    """A scenario without who was attacked, which parts of a cell differ in."""
    data = {k: v for k, v in cell.scenario["data"].items() if k not in ("people", "start")}
    return json.dumps({"defenses": [[]], **cell.scenario, "data": data}, sort_keys=True)


def join_records(records: Sequence[Record]) -> dict[Key, Record]:
    """The numbers of all records, with the people of each cell together."""
    found: dict[Key, list[Record]] = {}
    for record in records:
        for key, line in read_lines(record).items():
            found.setdefault(key, []).append(line)
    return {key: join_people(lines) for key, lines in found.items()}


def join_people(lines: Sequence[Record]) -> Record:
    """One line of several of the same cell; a person who is in two counts as in the longer.

    The best of all people is the best of the parts.

    Example:
        >>> parts = [{"seepage": 1.0, "standard": None, "statistic": "mean", "each": {"a.0": 1.0}},
        ...          {"seepage": 3.0, "standard": None, "statistic": "mean", "each": {"b.0": 3.0}}]
        >>> join_people(parts)["seepage"], join_people(parts)["people"]
        (2.0, 2)
    """
    first, *rest = sorted(lines, key=lambda line: -len(line["each"] or ()))
    if first["statistic"] == "best":
        pick = max if measure(first["measure"]).higher_leaks_more else min
        return pick(lines, key=lambda line: line["seepage"])
    used = [first]
    for line in rest:
        known = {who for one in used for who in one["each"]}
        if line["statistic"] == "mean" and line["each"] and not known & line["each"].keys():
            used.append(line)
    if len(used) == 1:
        return first
    each = {who: float(value) for line in used for who, value in line["each"].items()}
    found = mean_interval(list(each.values()), [who.rsplit(".", 1)[0] for who in each])
    usual = [(line["standard"], len(line["each"])) for line in used]
    standard = None
    if all(value is not None for value, _ in usual):
        standard = sum(value * count for value, count in usual) / len(each)
    joined = {"seepage": found.middle, "interval": [found.low, found.high], "people": len(each)}
    return {**first, **joined, "standard": standard, "each": each}


def find_lines(table: PaperTable, scale: str, known: dict[Key, Record]) -> Iterator[Line]:
    """The lines of a table, as far as there are numbers for them."""
    for block in table.published:
        for cell in find_cells(table, scale):
            key = (_name(cell), block.measure, block.statistic)
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


def name_parts(records: Sequence[Record]) -> list[str]:
    """The commands that made the records, rows and columns of one table named once.

    Example:
        >>> one = {"name": "t", "command": "make t --row B = 4 --set a=1", "commit": "c"}
        >>> name_parts([one, {**one, "command": "make t --row B = 8 --set a=1"}])
        ['t (`make t --set a=1`, 2 parts by row or column, c)']
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        whole = re.sub(r" --(row|column) .*?(?= --|$)", "", record["command"])
        key = (record["name"], whole, record["commit"])
        found.setdefault(key, []).append(record["command"])
    return [
        f"{name} (`{commands[0]}`, {commit})"
        if len(commands) == 1
        else f"{name} (`{whole}`, {len(commands)} parts by row or column, {commit})"
        for (name, whole, commit), commands in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--of", type=Path, nargs="+", required=True, help="records of one scale")
    parser.add_argument("--set", action="append", default=[], help="as for benchmarks.papers")
    options = parser.parse_args()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in options.of]
    known = join_records(records)
    scale = records[0]["scale"]
    table = load_table(options.name).with_values(scale, read_values(options.set))
    lines = list(find_lines(table, scale, known))
    if not lines:
        raise SystemExit(f"expected cells of {options.name} in these records, found none")
    seconds = sum(record["seconds"] for record in records)
    first = {key: records[0][key] for key in ("command", "commit", "machine")}
    if len(parts := name_parts(records)) == 1:
        first["command"] = re.findall("`(.*)`", parts[0])[0]
    told = {
        "exit_code": 0,
        "wall": round(sum(record["wall"] for record in records), 1),
        "cpu": None,
    }
    made = Reproduction(table, scale, lines, seconds).plain()
    told_before = [record["note"] for record in records if "note" in record]
    note = {"note": " ".join([f"Put together from cells of {' and '.join(parts)}.", *told_before])}
    again = [record["rerun"] for record in records if "rerun" in record]
    note |= {"rerun": " ".join(again)} if again else {}
    path = FOLDER / f"{options.name}-{scale}.json"
    path.write_text(
        json.dumps({**first, **told, **made, **note}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"{path.name}: {len(lines)} numbers")


if __name__ == "__main__":
    main()
