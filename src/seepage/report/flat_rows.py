"""Results as flat rows for spreadsheets and data frames, and as CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from seepage.audit.record import Record, name_infinities
from seepage.core.errors import import_extra
from seepage.report.leak import Attempt, attempts
from seepage.report.unscored import unscored
from seepage.report.words import Setup, defense_words, local_words, threat_words

if TYPE_CHECKING:
    from seepage.report.change import Change

Cell = str | int | float | bool | None
FlatRow = Mapping[str, Cell]
# Arguments of a local computation that have a column of their own.
_LOCAL = ("steps", "epochs", "local_batch_size", "lr", "momentum")


def result_rows(records: Sequence[Record]) -> list[FlatRow]:
    """One row per person and attack: scored ones first, then those without truth or result."""
    metrics = list(dict.fromkeys(name for record in records for name in record.scores))
    scored = [
        {
            **_describe(attempt.record, attempt.victim[1]),
            "status": attempt.record.status,
            "level": str(attempt.level),
            **_describe_place(attempt),
            **{metric: attempt.score(metric) for metric in metrics},
            **{
                f"{name}_psnr": scores["psnr"][attempt.index]
                for name, scores in attempt.record.baselines.items()
                if "psnr" in scores
            },
            **_effort(attempt.record),
            "error": None,
        }
        for attempt in attempts(records)
    ]
    blind = [
        {**_describe(record, person), "status": record.status, **_effort(record), "error": None}
        for record in unscored(records)
        for person in record.people
    ]
    failed = [
        {**_describe(record, person), "status": record.status, "error": record.error}
        for record in sorted(records, key=lambda record: record.failed)
        if record.error is not None
        for person in record.people
    ]
    return [*scored, *blind, *failed]


def _describe_place(attempt: Attempt) -> dict[str, Cell]:
    """The person's place among strangers."""
    found = attempt.identification
    names = ("rank", "strangers", "gallery", "one_in", "one_in_low", "one_in_high")
    return {name: getattr(found, name) if found else None for name in names}


def flat_bounds(records: Sequence[Record]) -> list[FlatRow]:
    """One row per person and bound."""
    rows: list[FlatRow] = []
    for record in records:
        bound = record.bound
        assert bound is not None
        values: Sequence[float | None] = bound.values or [None] * record.batch_size
        rows += [
            {
                **_describe(record, person),
                "status": record.status,
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
            **_describe_setup(change.setups[1]),
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


def _describe_setup(setup: Setup) -> dict[str, Cell]:
    return {
        "batch_size": setup.batch_size,
        "local": local_words(setup.local),
        "local_name": setup.local.name,
        **{
            f"local_{name.removeprefix('local_')}": setup.local.arguments.get(name)
            for name in _LOCAL
        },
        "defense": defense_words(setup.defense),
        "defense_name": " + ".join(link.name for link in setup.defense),
    }


def _describe(record: Record, person: int) -> dict[str, Cell]:
    """The first columns: labels, names and the batch size."""
    return {
        "data": record.data,
        "person": person,
        "sampling": record.sampling,
        "model": record.model,
        **_describe_setup(Setup.of(record)),
        "threat": threat_words(record.threat),
        "attack": str(record.attack),
        "attack_name": record.attack.name,
        "seed": record.seed,
    }


def _effort(record: Record) -> FlatRow:
    certificate = record.certificate or {}
    return {
        "residual": certificate.get("residual"),
        "unique": certificate.get("unique"),
        "locally_unique": certificate.get("locally_unique", certificate.get("unique")),
        "error_bound": certificate.get("error"),
        **{name: record.effort.get(name) for name in ("steps", "restarts", "seconds", "device")},
    }


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
    return json.dumps(name_infinities(content), indent=1, allow_nan=False) + "\n"


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
