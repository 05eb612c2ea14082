"""Results as flat rows for spreadsheets and data frames, and as CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from seepage.audit._record import Record
from seepage.audit._words import defense_words, local_words, threat_words
from seepage.audit.results import Results
from seepage.audit.results._flatten import FlatRow, describe_case, describe_setup
from seepage.core._schema import to_plain
from seepage.core.errors import import_extra

if TYPE_CHECKING:
    from seepage.report._change import Change


def result_rows(records: Results | Sequence[Record]) -> list[FlatRow]:
    """One row per person and attack: scored ones first, then those without truth or result."""
    return Results.of(records).to_rows()


def flat_bounds(records: Sequence[Record]) -> list[FlatRow]:
    """One row per person and bound."""
    rows: list[FlatRow] = []
    for record in records:
        bound = record.bound
        assert bound is not None
        values: Sequence[float | None] = bound.values or [None] * record.batch_size
        rows += [
            {
                **describe_case(record, person),
                "attack": None,
                "attack_name": None,
                "threat": None,
                "bound": str(record.attack),
                "side": bound.side,
                "bounded": bound.metric,
                "value": None if bound.remark else value,
                "remark": bound.remark,
                "error": record.error,
            }
            for person, value in zip(record.people, values, strict=True)
        ]
    return rows


def change_rows(found: Sequence[Change]) -> list[FlatRow]:
    """One row per person and setup of either audit."""
    return [
        {
            "data": change.victim[0],
            "person": change.victim[1],
            "model": change.attacked.model,
            **describe_setup(change.setups[1]),
            "defense_before": defense_words(change.defenses[0]),
            "attack_before": str(change.before.record.attack) if change.before else None,
            "attack_after": str(change.after.record.attack) if change.after else None,
            "psnr_before": change.before.psnr if change.before else None,
            "psnr_after": change.after.psnr if change.after else None,
            "level_before": str(change.before.level) if change.before else None,
            "level_after": str(change.after.level) if change.after else None,
            "direction": str(change.direction),
        }
        for change in found
    ]


def labelled_record(record: Record) -> dict[str, Any]:
    """The plain form of a record, with labels in words beside the values."""
    labels = {
        "local": local_words(record.local),
        "defense": defense_words(record.defense),
        "threat": threat_words(record.threat),
        "attack": str(record.attack),
    }
    return {**record.plain(), "labels": labels}


def as_csv(rows: Sequence[FlatRow]) -> str:
    """Write rows as CSV, with every column that any row has.

    Text that a spreadsheet would run as a formula begins with an apostrophe.

    Example:
        >>> print(as_csv([{"a": 1}, {"a": 2.5, "b": "=x"}]), end="")
        a,b
        1,
        2.5,'=x
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _quote_formula(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def as_json(content: Mapping[str, object]) -> str:
    """Write plain data as JSON, with infinity as the word "inf" as in every record.

    Example:
        >>> print(as_json({"psnr": [float("inf"), 1.5]}), end="")
        {
         "psnr": [
          "inf",
          1.5
         ]
        }
    """
    return json.dumps(to_plain(content), indent=1, allow_nan=False) + "\n"


def as_parquet(rows: Sequence[FlatRow]) -> bytes:
    """Write rows as Parquet; raises MissingExtra without pyarrow."""
    reason, otherwise = "--format parquet needs pyarrow", ", or use --format csv"
    pyarrow = import_extra("pyarrow", "parquet", reason=reason, otherwise=otherwise)
    parquet = import_module("pyarrow.parquet")
    kept = io.BytesIO()
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in _columns(rows)})
    parquet.write_table(table, kept)
    return kept.getvalue()


def _columns(rows: Sequence[FlatRow]) -> list[str]:
    """Every column, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _quote_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    # A spreadsheet begins a new cell, hence perhaps a formula, at any of these.
    plain = re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", value)
    # Full-width signs count as the plain ones in some languages.
    risky = plain.lstrip().startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20"))
    return f"'{plain}" if risky else plain
