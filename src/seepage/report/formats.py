"""Writing flat rows as CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from seepage.core.errors import MissingExtra
from seepage.report.rows import FlatRow


def as_csv(rows: Sequence[FlatRow]) -> str:
    """Rows as CSV, every column that any row has.

    Text that a spreadsheet would run as a formula is quoted with an apostrophe.

    Example:
        >>> print(as_csv([{"a": 1}, {"a": 2.5, "b": "=x"}]), end="")
        a,b
        1,
        2.5,'=x
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def as_parquet(rows: Sequence[FlatRow]) -> bytes:
    """Rows as Parquet, infinity kept.

    Raises:
        MissingExtra: If pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(
            "--format parquet needs pyarrow: pip install 'seepage[parquet]', or use --format csv"
        ) from error
    names = columns(rows)
    kept = io.BytesIO()
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pyarrow.parquet.write_table(table, kept)
    return kept.getvalue()


def columns(rows: Sequence[FlatRow]) -> list[str]:
    """Every column, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _harmless(value: object) -> object:
    risky = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if risky else value
