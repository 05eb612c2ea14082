"""Cells where less came back than a paper printed, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from seepage_papers.measures import measure
from seepage_papers.substitute import Plain, filled
from seepage_papers.table import Entry, PaperTable

UNKNOWN = "cause not known"
# What a number may be worse by before that needs a cause; a tenth of what is printed elsewhere.
ALLOWED: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("psnr", "psnr_normalised_003", "psnr_peak255_004"), 1.0),
        **dict.fromkeys(("lpips", "lpips_gradattack", "rmse_gradattack", "feature_error"), 0.03),
        "accuracy": 2.0,
    }
)


@dataclass(frozen=True, eq=False)
class Shortfall:
    """A number that is worse than the paper's by more than chance.

    Args:
        line: As `Line.plain` has it.
        cause: Why, or that it is not known.
        ours: What our strongest attack has there instead; None if the table has no such row or
            column.
        single: What came back of the person of whom most did, by the paper's attack or ours, if
            the paper's number is of one.
    """

    line: Plain
    cause: str
    ours: float | None = None
    single: float | None = None


def shortfalls(table: PaperTable, run: Plain) -> list[Shortfall]:
    """Every number of a recorded run that falls short, with the causes that the table's file has.

    Args:
        table: Where causes are written: at rows, columns and blocks of published numbers.
        run: As `Reproduction.plain` has it.
    """
    return [
        Shortfall(
            line,
            _cause(table, line, run["values"]),
            _ours(table, line, run),
            _single(table, line, run),
        )
        for line in run["lines"]
        if falls_short(line)
    ]


def is_reached(line: Plain, experiment: Plain) -> bool:
    """Whether an experiment has the printed number in the cell of a line.

    Args:
        line: As `Line.plain` has it.
        experiment: A record of `rows`, each with its `row`, `column` and what was `found`.

    Example:
        >>> line = {"row": "a", "column": "b", "measure": "psnr", "statistic": "mean",
        ...         "paper": 20.0, "seepage": 12.0}
        >>> is_reached(line, {"rows": [{"row": "a", "column": "b", "found": 19.5}]})
        True
        >>> is_reached(line, {"rows": [{"row": "a", "column": "c", "found": 19.5}]})
        False
    """
    rows = experiment.get("rows", ())
    return any(
        all(row.get(axis) == line[axis] for axis in ("row", "column"))
        and "found" in row
        and not falls_short({**line, "seepage": row["found"]})
        for row in rows
    )


def attacks_alone(line: Plain) -> bool:
    """Whether a paper printed it, and it tells of an attack and not of a network or a training."""
    kind = str(line["measure"])
    other = kind in ("accuracy", "training_loss", "rank") or line["statistic"] == "deviation"
    return line["paper"] is not None and not other


def falls_short(line: Plain) -> bool:
    """Whether less came back than is printed, or nothing where something is.

    Example:
        >>> about = {"measure": "psnr", "statistic": "mean", "paper": 23.6}
        >>> falls_short({**about, "seepage": 22.7}), falls_short({**about, "seepage": 22.5})
        (False, True)
    """
    printed, found = line["paper"], line["seepage"]
    # A spread is neither better nor worse.
    if printed is None or line["statistic"] == "deviation":
        return False
    if found is None:
        return True
    kind = str(line["measure"])
    sign = 1.0 if measure(kind).higher_leaks_more else -1.0
    return bool(sign * (printed - found) > ALLOWED.get(kind, 0.1 * abs(printed)))


def _cause(table: PaperTable, line: Plain, values: Mapping[str, Any]) -> str:
    same = (line["measure"], line["statistic"])
    known = [
        *_of(table.rows, line["row"], values),
        *_of(table.columns, line["column"], values),
        *(b.cause for b in table.published if (b.measure, b.statistic) == same),
    ]
    return " ".join(dict.fromkeys(cause for cause in known if cause)) or UNKNOWN


def _ours(table: PaperTable, line: Plain, run: Plain) -> float | None:
    """The strongest of what is ours in the same column, or in the same row."""
    return _most(line, [float(there["seepage"]) for there in _our_lines(table, line, run)])


def _our_lines(table: PaperTable, line: Plain, run: Plain) -> list[Plain]:
    """The lines of our attacks in the same column, or in the same row."""
    kind = ("measure", "statistic")
    found: list[Plain] = []
    for axis, other, entries in (
        ("row", "column", table.rows),
        ("column", "row", table.columns),
    ):
        ours = {str(filled(one.label, run["values"])) for one in entries if one.ours}
        found += [
            there
            for there in run["lines"]
            if there[axis] in ours
            and there["seepage"] is not None
            and all(there[k] == line[k] for k in (other, *kind))
        ]
    return found


def _single(table: PaperTable, line: Plain, run: Plain) -> float | None:
    same = (line["measure"], line["statistic"])
    if not any(b.single for b in table.published if (b.measure, b.statistic) == same):
        return None
    every = [line, *_our_lines(table, line, run)]
    return _most(line, [float(v) for one in every for v in (one.get("each") or {}).values()])


def _most(line: Plain, values: Sequence[float]) -> float | None:
    """The one of these that leaks most; None if there is none."""
    sign = 1.0 if measure(str(line["measure"])).higher_leaks_more else -1.0
    return max(values, key=lambda value: sign * value, default=None)


def _of(entries: Sequence[Entry], label: object, values: Mapping[str, Any]) -> list[str]:
    return [entry.cause for entry in entries if str(filled(entry.label, values)) == label]
