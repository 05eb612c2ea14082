"""Results as flat rows, for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seepage.audit import Record
from seepage.report.change import Change
from seepage.report.leak import Attempt, attempts
from seepage.report.verdict import unscored

Cell = str | int | float | bool | None
FlatRow = Mapping[str, Cell]


def result_rows(records: Sequence[Record]) -> list[FlatRow]:
    """One row per person and attack in the order of the audit, then without truth, then failed."""
    metrics = list(dict.fromkeys(name for record in records for name in record.scores))
    scored = [_scored(attempt, metrics) for attempt in attempts(records)]
    failed = [
        {**described(record), "person": person, "error": record.error}
        for record in records
        if record.error is not None
        for person in record.people
    ]
    blind = [
        {**described(record), "person": person, **_checked(record), "error": None}
        for record in unscored(records)
        for person in record.people
    ]
    return [*scored, *blind, *failed]


def change_rows(found: Sequence[Change]) -> list[FlatRow]:
    """One row per person, defense and attack of either audit."""
    return [
        {
            "data": change.victim[0],
            "person": change.victim[1],
            "defense": change.defense,
            "attack": change.attack,
            "psnr_before": change.before.psnr if change.before else None,
            "psnr_after": change.after.psnr if change.after else None,
            "level_before": str(change.before.level) if change.before else None,
            "level_after": str(change.after.level) if change.after else None,
            "direction": str(change.direction),
        }
        for change in found
    ]


def described(record: Record) -> dict[str, Cell]:
    """What a case was, as the first columns."""
    return {
        "data": record.data,
        "person": None,
        "model": record.model,
        "local": record.local,
        "defense": record.defense,
        "threat": record.threat,
        "attack": record.attack,
        "seed": record.seed,
    }


def _scored(attempt: Attempt, metrics: Sequence[str]) -> FlatRow:
    record = attempt.record
    baselines = {
        f"{name}_psnr": scores["psnr"][attempt.index] for name, scores in record.baselines.items()
    }
    return {
        **described(record),
        "person": attempt.victim[1],
        "level": str(attempt.level),
        **{metric: attempt.score(metric) for metric in metrics},
        **baselines,
        **_checked(record),
        "error": None,
    }


def _checked(record: Record) -> FlatRow:
    certificate = record.certificate or {}
    return {
        "residual": certificate.get("residual"),
        "unique": certificate.get("unique"),
        **{name: record.effort.get(name) for name in ("steps", "restarts", "seconds", "device")},
    }
