"""Results as flat rows, for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from seepage.audit._record import Record
from seepage.audit._words import Setup, defense_words, local_words, threat_words
from seepage.audit.results._result import Result

Cell = str | int | float | bool | None
FlatRow = Mapping[str, Cell]
# Arguments of a local computation that have a column of their own.
_LOCAL = ("optimizer", "steps", "epochs", "local_batch_size", "lr", "momentum")


def flatten(rows: Iterable[Result], records: Sequence[Record]) -> list[FlatRow]:
    """Scored results first, then the people of records without a truth or a result."""
    metrics = list(dict.fromkeys(name for record in records for name in record.scores))
    scored = [
        {
            **describe_case(row.record, row.victim[1]),
            "level": str(row.level),
            **_describe_place(row),
            **{metric: row.score(metric) for metric in metrics},
            **{
                f"{name}_psnr": scores["psnr"][row.index]
                for name, scores in row.record.baselines.items()
                if "psnr" in scores
            },
            **_describe_effort(row.record),
            "error": None,
        }
        for row in rows
    ]
    blind = [
        {**describe_case(record, person), **_describe_effort(record), "error": None}
        for record in records
        if record.error is None and not record.scores
        for person in record.people
    ]
    failed = [
        {**describe_case(record, person), "error": record.error}
        for record in sorted(records, key=lambda record: record.failed)
        if record.error is not None
        for person in record.people
    ]
    return [*scored, *blind, *failed]


def _describe_place(row: Result) -> dict[str, Cell]:
    """The person's place among strangers."""
    found = row.identification
    names = ("rank", "strangers", "gallery", "one_in", "one_in_low", "one_in_high")
    return {name: getattr(found, name) if found else None for name in names}


def describe_setup(setup: Setup) -> dict[str, Cell]:
    """The columns of a setup."""
    return {
        "batch_size": setup.batch_size,
        "local": local_words(setup.local),
        "local_name": setup.local.name,
        **{
            f"local_{name.removeprefix('local_')}": _write_cell(setup.local.arguments.get(name))
            for name in _LOCAL
        },
        "defense": defense_words(setup.defense),
        "defense_name": " + ".join(link.name for link in setup.defense),
    }


def _write_cell(value: object) -> Cell:
    """An argument as it is, or in words if it is several, such as a learning rate for each step."""
    return value if isinstance(value, str | int | float | None) else str(value)


def describe_case(record: Record, person: int) -> dict[str, Cell]:
    """The first columns: labels, names and the batch size."""
    return {
        "data": record.data,
        "person": person,
        "sampling": record.sampling,
        "model": record.model,
        **describe_setup(Setup.of(record)),
        "threat": threat_words(record.threat),
        "attack": str(record.attack),
        "attack_name": record.attack.name,
        "seed": record.seed,
        "status": record.status,
    }


def _describe_effort(record: Record) -> FlatRow:
    certificate = record.certificate or {}
    return {
        "residual": certificate.get("residual"),
        "unique": certificate.get("unique"),
        "locally_unique": certificate.get("locally_unique", certificate.get("unique")),
        "error_bound": certificate.get("error"),
        "steps": record.effort.get("steps"),
        "restarts": record.effort.get("restarts"),
        "seconds": record.effort.get("seconds"),
        "device": record.effort.get("device"),
    }
