"""Rows of a table as they are written: CSV and Parquet files, or columns by name."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO

from seepage.core.errors import (
    DataNotFound,
    InvalidValue,
    SeepageError,
    UnreadableFile,
    import_extra,
)
from seepage.core.rng import Rng
from seepage.core.whole_file import open_plain

# Rows that are kept of a longer table, drawn at random, so that memory has a limit.
_MOST_ROWS = 100_000
_MOST_COLUMNS = 2_000
_LONGEST_LINE = 2**24


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a table as they were read: the columns by name, and how many rows there were."""

    cells: Mapping[str, Sequence[str]]
    total: int

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()), ()))


def _read_columns(source: Mapping[str, Sequence[object]]) -> TableRows:
    cells = {
        str(key): ["" if value is None else str(value).strip() for value in column]
        for key, column in source.items()
    }
    sizes = {len(column) for column in cells.values()}
    if len(sizes) > 1:
        raise InvalidValue(f"expected columns of one length, got {sorted(sizes)}")
    return TableRows(cells, max(sizes, default=0))


def read_rows(source: Path | Mapping[str, Sequence[object]]) -> TableRows:
    """Read a `.csv`, `.tsv` or `.parquet` file, or columns by name, as of a data frame."""
    return _read_columns(source) if isinstance(source, Mapping) else _read_file(source)


def _read_file(path: Path) -> TableRows:
    if not path.exists():
        raise DataNotFound(f"expected a table at {path}, but nothing is there; check the path")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        with open_plain(path, follow=True) as file:
            return _read_csv(path, file, "\t" if path.suffix == ".tsv" else None)
    except SeepageError:
        raise
    except (OSError, csv.Error, ValueError) as error:
        raise UnreadableFile(
            f"expected a table of comma-separated values in {path}, but it cannot be read "
            f"({error}); save it as UTF-8"
        ) from error


def _read_csv(path: Path, file: IO[bytes], separator: str | None) -> TableRows:
    """Read the rows of a table, at most `_MOST_ROWS` of them, drawn at random in one pass."""
    lines = _decode(file)
    first = next(lines, "")
    separator = separator or max(",;\t|", key=first.count)
    rows = csv.reader(chain([first], lines), delimiter=separator)
    names = [name.strip() for name in next(rows, [])]
    if len(set(names)) < len(names) or "" in names or len(names) > _MOST_COLUMNS:
        raise InvalidValue(
            f"expected a first line of different column names, {_MOST_COLUMNS} at most, in {path}, "
            f"got {len(names)} of which {len(set(names) - {''})} differ; is that line missing?"
        )
    kept: list[list[str]] = []
    # Not numpy's, whose numbers cost more than a row does if they are drawn one by one.
    draw = random.Random(0).random
    total = 0
    for row in rows:
        if not row:
            continue
        if len(row) != len(names):
            raise InvalidValue(
                f"expected {len(names)} values in row {total + 1} of {path}, as in its first line, "
                f"got {len(row)}; quote values that hold a {separator!r}"
            )
        total += 1
        if len(kept) < _MOST_ROWS:
            kept.append(row)
        elif (place := int(draw() * total)) < _MOST_ROWS:
            kept[place] = row
    return TableRows(
        {name: [row[i].strip() for row in kept] for i, name in enumerate(names)}, total
    )


def _decode(file: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b"")):
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"a line has more than {_LONGEST_LINE} bytes")
        yield line.decode("utf-8-sig" if number == 0 else "utf-8")


def _read_parquet(path: Path) -> TableRows:
    reason = f"{path} is a Parquet file, which needs pyarrow"
    parquet = import_extra("pyarrow.parquet", "parquet", reason=reason)
    try:
        with parquet.ParquetFile(path) as file:
            total = int(file.metadata.num_rows)
            chosen = Rng(0).fork("rows").permutation(total)[:_MOST_ROWS].sort().values.numpy()
            batches = file.iter_batches(batch_size=_MOST_ROWS)
            parts, first = [], 0
            for batch in batches:
                inside = chosen[(chosen >= first) & (chosen < first + batch.num_rows)] - first
                parts.append(batch.take(import_module("pyarrow").array(inside)).to_pydict())
                first += batch.num_rows
    except SeepageError:
        raise
    except Exception as error:
        raise UnreadableFile(f"expected a Parquet table in {path}, got another: {error}") from error
    joined = {key: [value for part in parts for value in part[key]] for key in parts[0]}
    return replace(_read_columns(joined), total=total)
