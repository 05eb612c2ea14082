"""Results as CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence

from seepage.core.errors import MissingExtra
from seepage.report.flat_rows import FlatRow


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


def as_json(content: Mapping[str, object]) -> str:
    """Plain data as JSON, where infinity is the word "inf" as in every record.

    Example:
        >>> print(as_json({"psnr": [math.inf, 1.5]}), end="")
        {
         "psnr": [
          "inf",
          1.5
         ]
        }
    """
    return json.dumps(_words(content), indent=1, allow_nan=False) + "\n"


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


def _words(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_words(item) for item in value]
    infinite = isinstance(value, float) and math.isinf(value)
    return str(value) if infinite else value


def _harmless(value: object) -> object:
    risky = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if risky else value
