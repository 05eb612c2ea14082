"""Rows of a table as they are written: CSV and Parquet files, or columns by name."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from seepage.core._rng import Rng
from seepage.core._whole_file import open_plain, require_size
from seepage.core.errors import (
    DataNotFound,
    InvalidValue,
    SeepageError,
    UnreadableFile,
    first_error_line,
    import_extra,
)

# Rows that are kept of a longer table, drawn at random, so that memory has a limit.
_MOST_ROWS = 100_000
_MOST_COLUMNS = 2_000
_LONGEST_LINE = 2**24
# Of Parquet, which packs rows and cells that repeat.
_MOST_PARQUET_ROWS = 50_000_000
_ROWS_AT_ONCE = 10_000
_LONGEST_CELL = csv.field_size_limit()


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a table as they were read: the columns by name, and how many rows there were."""

    cells: Mapping[str, Sequence[str]]
    total: int

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()), ()))


def _read_columns(source: Mapping[str, Sequence[object]]) -> TableRows:
    cells = {str(key): list(map(_write_cell, column)) for key, column in source.items()}
    sizes = {len(column) for column in cells.values()}
    if len(sizes) > 1:
        raise InvalidValue(f"expected columns of one length, got {sorted(sizes)}")
    return TableRows(cells, max(sizes, default=0))


def _write_cell(value: object) -> str:
    return "" if value is None else str(value).strip()


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
        with open_plain(path, follow=True) as source, parquet.ParquetFile(source) as file:
            words = _check_parquet(path, file)
        # Texts that occur often stay in a dictionary: a small file may hold one of them 10^9 times.
        with (
            open_plain(path, follow=True) as source,
            parquet.ParquetFile(source, read_dictionary=words) as file,
        ):
            return _sample_rows(file)
    except SeepageError:
        raise
    except Exception as error:
        raise UnreadableFile(
            f"expected a Parquet table in {path}, got another: {first_error_line(error)}"
        ) from error


def _check_parquet(path: Path, file: Any) -> list[str]:  # noqa: ANN401 - pyarrow's
    """Refuse a table that would take too much memory, and list its columns of texts."""
    types, schema, about = import_module("pyarrow").types, file.schema_arrow, file.metadata
    if len(set(schema.names)) < len(schema.names) or len(schema.names) > _MOST_COLUMNS:
        raise InvalidValue(
            f"expected different column names, {_MOST_COLUMNS} at most, in {path}, got "
            f"{len(schema.names)} of which {len(set(schema.names))} differ"
        )
    if about.num_rows > _MOST_PARQUET_ROWS:
        raise InvalidValue(
            f"expected at most {_MOST_PARQUET_ROWS} rows in {path}, got {about.num_rows}; draw some"
        )
    leaves = [file.schema.column(number) for number in range(len(file.schema))]
    for column, leaf in zip(schema, leaves, strict=False):
        if types.is_nested(column.type) or leaf.length > _LONGEST_CELL:
            raise InvalidValue(
                f"expected numbers and words in column {column.name!r} of {path}, got "
                f"{str(column.type)[:40]}; leave that column out"
            )
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    require_size(path, sum(group.total_byte_size for group in groups))
    return [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]


def _sample_rows(file: Any) -> TableRows:  # noqa: ANN401 - pyarrow's
    """Read at most `_MOST_ROWS` rows, drawn at random."""
    arrow, total = import_module("pyarrow"), int(file.metadata.num_rows)
    chosen = Rng(0).fork("rows").permutation(total)[:_MOST_ROWS].sort().values.numpy()
    cells: dict[str, list[str]] = {name: [] for name in file.schema_arrow.names}
    first = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
        start, end = np.searchsorted(chosen, [first, first + batch.num_rows])
        taken = batch.take(arrow.array(chosen[start:end] - first))
        for name, column in zip(cells, taken.columns, strict=True):
            cells[name] += map(_write_cell, _require_short(column).to_pylist())
        first += batch.num_rows
    return TableRows(cells, total)


def _require_short(column: Any) -> Any:  # noqa: ANN401 - pyarrow's
    """Return a column; raise `ValueError` if its words are longer than those of a CSV may be."""
    if hasattr(column, "dictionary"):
        lengths = import_module("pyarrow.compute").binary_length(column.dictionary)
        longest = max(lengths.drop_null().to_pylist(), default=0)
        if longest > _LONGEST_CELL:
            raise ValueError(f"a cell has {longest} bytes, more than {_LONGEST_CELL}")
    return column
