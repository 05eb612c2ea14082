"""Tables on the user's disk: CSV and Parquet files, whose column types are inferred or declared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.core._construct import LARGEST, construct, parse_toml
from seepage.core._whole_file import open_plain, spell_path
from seepage.core.errors import InvalidValue, UnknownName, UnreadableFile, error_path
from seepage.data._dataset import DataRequest, Dataset
from seepage.data._table_rows import TableRows, read_rows
from seepage.domains._tabular import Categorical, Column, Continuous, Tabular, round_outwards

# A column of words with more different ones, such as names, is left out.
MOST_CATEGORIES = 50
# Whole numbers with at most so many different values are classes if they are to be predicted.
MOST_CLASSES = 20
# Well below the largest number of single precision, in which networks compute.
_LARGEST_NUMBER = 1e30
# What people write where a value is missing.
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
# Names of a column to be predicted; without one it is the last.
_LABELS = ("label", "target", "class", "outcome", "y")
_MISSING_CATEGORY = "missing"

Kind = Literal["number", "category", "leave out"]


@dataclass(frozen=True, kw_only=True)
class _ColumnType:
    """What a column of a table is; what is not given is measured.

    Args:
        kind: "number", "category", or "leave out".
        low: The lowest number a column can hold.
        high: The highest.
        mean: What the network reads as 0.
        std: What the network reads as 1 above that.
    """

    kind: Kind
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("number", "category", "leave out"):
            raise InvalidValue(
                f"expected a column as 'number', 'category' or 'leave out', got {self.kind!r}"
            )


@dataclass(frozen=True)
class _Notes:
    """What was done to a table that its owner should know."""

    left_out: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)

    def sentence(self, rows: TableRows) -> str:
        said = []
        if rows.total > len(rows):
            said.append(f"{len(rows)} of its {rows.total} rows were drawn at random")
        if self.left_out:
            said.append(f"{_list_few(self.left_out)} left out, with too many different words")
        if self.filled:
            said.append(f"missing numbers of {_list_few(self.filled)} filled with the median")
        return f" ({'; '.join(said)})" if said else ""


def read_table(
    source: str | Path | Mapping[str, Sequence[object]],
    *,
    label: str | None = None,
    columns: Mapping[str, str | Mapping[str, object]] | None = None,
) -> Dataset:
    """Read a table, one row for each person, and find out what its columns are.

    A column whose values are all numbers is one of numbers, scaled to [0, 1] between bounds that
    are rounded outwards; a network reads them standardised. Two numbers or up to 50 different words
    make a column of categories. Columns with more different words, such as names, are left out. A
    missing category is a category of its own, and a missing number is replaced by the median. What
    was left out or replaced is said in the `source` of the result.

    A file `NAME.columns.toml` beside `NAME.csv` says otherwise, with the same words as the
    arguments here.

    Args:
        source: A `.csv`, `.tsv` or `.parquet` file, or columns by name; of a data frame,
            `frame.to_dict("list")`.
        label: The column to predict: classes, or a number if it has many values. By default one
            named label, target, class, outcome or y, else the last.
        columns: What columns are, by name: "number", "category", "leave out", or a table such as
            `{"kind": "number", "low": 0, "high": 120}`.

    Example:
        >>> table = {"age": [31, 62, 18], "smokes": ["no", "yes", "no"], "ill": ["no", "yes", "no"]}
        >>> read_table(table).domain
        Tabular(age~37/18.4572, smokes[2])
        >>> read_table(table, columns={"age": "category"}).domain
        Tabular(age[3], smokes[2])
    """
    if isinstance(source, Mapping):
        name, rows = "table", read_rows(source)
    else:
        path = spell_path(source)
        name, rows = str(path), read_rows(path)
        written = _read_declared(path.with_suffix(".columns.toml"))
        label = label or written.label
        columns = {**written.columns, **(columns or {})}
    declared = {key: _read_type(key, value) for key, value in (columns or {}).items()}
    for asked in (*declared, *([label] if label else [])):
        if asked not in rows.cells:
            raise UnknownName("column", asked, rows.cells, where=f"of {name}")
    if len(rows) < 2 or len(rows.cells) < 2:
        raise InvalidValue(
            f"expected a table of two rows or more, with a column to predict, in {name}, got "
            f"{len(rows)} rows of {len(rows.cells)} columns"
        )
    lowered = {key.lower(): key for key in rows.cells}
    guessed = next((lowered[word] for word in _LABELS if word in lowered), list(rows.cells)[-1])
    return _make_dataset(name, rows, label or guessed, declared)


def table_file(form: str, request: DataRequest) -> Dataset:
    """Load a table of a file; see `read_table`."""
    request.refuse_pixels("a table")
    return replace(read_table(request.argument), name=f"{form}:{request.argument}")


def _make_dataset(
    name: str, rows: TableRows, label: str, declared: Mapping[str, _ColumnType]
) -> Dataset:
    notes, parts, kept = _Notes(), [], list[Column]()
    for key, cells in rows.cells.items():
        if key == label:
            continue
        made = _make_column(name, key, cells, declared.get(key), notes)
        if made is not None:
            kept.append(made[0])
            parts.append(made[1])
    if not kept:
        raise InvalidValue(
            f"expected a column of numbers or categories in {name} besides {label!r}, got none; "
            "say what columns are in a .columns.toml file"
        )
    targets, names = _make_labels(name, label, rows.cells[label], declared.get(label))
    return Dataset(
        name=name,
        inputs=torch.cat(parts, dim=1),
        labels=targets,
        domain=Tabular(tuple(kept)),
        class_names=names,
        source=f"{name}, given by the user{notes.sentence(rows)}.",
    )


def _make_column(
    name: str, key: str, cells: Sequence[str], declared: _ColumnType | None, notes: _Notes
) -> tuple[Column, Tensor] | None:
    """The type of a column and its entries `(N, width)`; None if it is left out."""
    kind = declared.kind if declared else _infer_kind(name, key, cells)
    if kind == "category":
        words = sorted({_category(cell) for cell in cells})
        if len(words) < 2 and not declared:
            notes.left_out.append(key)
            return None
        column = Categorical(name=key, categories=tuple(words))
        codes = {word: code for code, word in enumerate(words)}
        numbers = torch.tensor([codes[_category(cell)] for cell in cells])
        return column, one_hot(numbers, len(words)).float()
    if kind == "leave out":
        notes.left_out.append(key)
        return None
    values = _read_numbers(name, key, cells)
    if bool(values.isnan().any()):
        notes.filled.append(key)
        values = torch.where(values.isnan(), values.nanmedian(), values)
    number = _measure(key, values, declared or _ColumnType(kind="number"))
    unit = (values - number.low) / (number.high - number.low)
    if bool((outside := ~((unit >= 0) & (unit <= 1))).any()):
        raise InvalidValue(
            f"expected column {key!r} of {name} in [{number.low:g}, {number.high:g}], as it is "
            f"declared, got {int(outside.sum())} of {len(unit)} rows outside; declare a wider range"
        )
    return number, unit.float()[:, None]


def _infer_kind(name: str, key: str, cells: Sequence[str]) -> Kind:
    """What a column is, judging by its values."""
    known = [cell for cell in cells if not _is_missing(cell)]
    different = set(known)
    words = sum(_parse(cell) is None for cell in known)
    if not words:
        return "number" if len(different) > 2 else "category"
    if len(different) <= MOST_CATEGORIES:
        return "category"
    if 2 * words < len(known):
        raise InvalidValue(
            f"expected column {key!r} of {name} to hold numbers, as most of its rows do, got "
            f"something else in {words} of {len(known)}; correct them, or say what the column is "
            "in a .columns.toml file"
        )
    return "leave out"


def _measure(key: str, values: Tensor, declared: _ColumnType) -> Continuous:
    low, high = round_outwards(float(values.min()), float(values.max()))
    low = low if declared.low is None else float(declared.low)
    high = high if declared.high is None else float(declared.high)
    deviation = float(values.std(correction=0)) or 1.0
    return Continuous(
        name=key,
        low=low,
        high=high,
        mean=float(values.mean()) if declared.mean is None else float(declared.mean),
        std=deviation if declared.std is None else float(declared.std),
    )


def _make_labels(
    name: str, label: str, cells: Sequence[str], declared: _ColumnType | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Classes `(N,)` with their names, or numbers `(N, 1)`, standardised."""
    if any(_is_missing(cell) for cell in cells):
        raise InvalidValue(
            f"expected a value of {label!r}, which is to be predicted, in every row of {name}, got "
            "rows without; leave them out, or name another column as label"
        )
    parsed = [_parse(cell) for cell in cells]
    few = len(set(cells)) <= MOST_CLASSES
    number = all(value is not None for value in parsed) and not few
    if declared is not None:
        number = declared.kind == "number"
    if number:
        values = _read_numbers(name, label, cells)
        deviation = values.std(correction=0) or 1.0
        return ((values - values.mean()) / deviation).float()[:, None], (label,)
    words = sorted(set(cells), key=lambda word: (_parse(word) is None, _parse(word) or 0.0, word))
    if len(words) > MOST_CATEGORIES or len(words) < 2:
        raise InvalidValue(
            f"expected {label!r} of {name}, which is to be predicted, to hold numbers or 2 to "
            f"{MOST_CATEGORIES} classes, got {len(words)} different words; name another column as "
            "label in a .columns.toml file"
        )
    codes = {word: code for code, word in enumerate(words)}
    return torch.tensor([codes[cell] for cell in cells]), tuple(words)


def _is_missing(cell: str) -> bool:
    return cell.lower() in _MISSING


def _category(cell: str) -> str:
    return _MISSING_CATEGORY if _is_missing(cell) else cell


def _parse(cell: str) -> float | None:
    """The number in a cell; None if there is none."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _read_numbers(name: str, key: str, cells: Sequence[str]) -> Tensor:
    """Numbers in double precision, NaN where they are missing."""
    values = np.full(len(cells), np.nan)
    wrong = 0
    for row, cell in enumerate(cells):
        if _is_missing(cell):
            continue
        value = _parse(cell)
        wrong += value is None
        values[row] = np.nan if value is None else value
    if wrong:
        raise InvalidValue(
            f"expected numbers in column {key!r} of {name}, got something else in {wrong} of "
            f"{len(cells)} rows; correct them, or declare the column a category"
        )
    if np.isnan(values).all() or np.nanmax(np.abs(values)) > _LARGEST_NUMBER:
        got = "none" if np.isnan(values).all() else "larger ones"
        raise InvalidValue(
            f"expected numbers up to {_LARGEST_NUMBER:g} in column {key!r} of {name}, got {got}; "
            "leave the column out in a .columns.toml file"
        )
    return torch.from_numpy(values)


@dataclass(frozen=True)
class _Declared:
    """What a `.columns.toml` file says."""

    label: str | None = None
    columns: Mapping[str, str | Mapping[str, object]] = field(default_factory=dict)


def _read_declared(path: Path) -> _Declared:
    if not path.exists():
        return _Declared()
    try:
        with open_plain(path, follow=True) as file:
            written = parse_toml(file.read(LARGEST + 1).decode())
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"expected TOML in {path}: {error}") from error
    with error_path(path.name):
        return construct(path.name, _Declared, written)


def _read_type(key: str, value: str | Mapping[str, object]) -> _ColumnType:
    with error_path("columns", key):
        options = value if isinstance(value, Mapping) else {"kind": value}
        return construct(f"column {key}", _ColumnType, options)


def _list_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
