"""What each defense is worth, from a file, beside what it lets through."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from seepage.audit import Choice, Record, leakages
from seepage.core.errors import InvalidValue, UnknownName, UnreadableFile
from seepage.report.words import defense_words


def choices(path: Path, records: Sequence[Record]) -> list[Choice]:
    """One choice for every defense whose utility the file tells.

    Args:
        path: JSON that maps defenses, as the tables name them, to a number, e.g. test accuracy.
        records: What leaked behind each.
    """
    utilities = _read(path)
    worst = {defense_words(leakage.defense): leakage.worst for leakage in leakages(records)}
    for defense in utilities:
        if defense not in worst:
            raise UnknownName("defense", defense, worst, where=f"in {path.name}")
    return [Choice(defense, worst[defense], utility) for defense, utility in utilities.items()]


def _read(path: Path) -> Mapping[str, float]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnreadableFile(
            f"cannot read utilities from {str(path)!r}: {reason}; expected JSON"
        ) from error
    fits = isinstance(found, dict) and all(_number(value) for value in found.values())
    if not fits:
        raise InvalidValue(
            f"expected {path.name} to map defenses to numbers, such as "
            f'{{"Prune(0.9)": 0.87}}, got {str(found)[:60]}'
        )
    return {str(defense): float(value) for defense, value in found.items()}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
