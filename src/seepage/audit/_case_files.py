"""The files of finished cases and of private inputs, read and checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from seepage.audit._folder import CASES, ENVIRONMENT, SPEC, SUFFIX, case_file, inputs_file
from seepage.audit._plan import Plan, Planned
from seepage.audit._record import Record
from seepage.core._schema import parse_json, to_plain
from seepage.core._whole_file import read_plain, unseal
from seepage.core.errors import UnreadableFile


def read_record(path: Path, planned: Planned) -> Record:
    """Read the record in the file of a case.

    Raises:
        UnreadableFile: If any byte of the file was altered, or it belongs to another case.
        FileNotFoundError: If the case is not done.
    """
    words = unseal(read_plain(path))
    record = Record.from_plain(parse_json(words.get("record", ""), "its record"))
    if record.case != planned.id or planned.inputs not in ("", record.truth):
        raise UnreadableFile("it belongs to another case")
    return record


def read_inputs(path: Path, name: str) -> None:
    """Raise unless private inputs are as they were written; see `read_record`."""
    if unseal(read_plain(path)).get("name") != name:
        raise UnreadableFile("it holds other inputs")


def read_records(
    folder: Path, plan: Plan, known: Mapping[str, Record] = MappingProxyType({})
) -> tuple[dict[str, Record], dict[str, str]]:
    """Read the record of every case that is done, in the order of the plan.

    Args:
        folder: Of the audit.
        plan: Its plan.
        known: Records that are not read again.

    Returns:
        Records, and what is wrong with files that hold none; both by case.
    """
    there = _list_names(folder / CASES)
    found: dict[str, Record] = {}
    damaged: dict[str, str] = {}
    for planned in plan.cases:
        if planned.id in known:
            found[planned.id] = known[planned.id]
        elif f"{planned.id}{SUFFIX}" in there:
            try:
                found[planned.id] = read_record(case_file(folder, planned.id), planned)
            except FileNotFoundError:
                continue
            except OSError as error:
                damaged[planned.id] = error.strerror or str(error)
    return found, damaged


def find_damaged_inputs(folder: Path, plan: Plan, records: Mapping[str, Record]) -> dict[str, str]:
    """Find private inputs of finished cases that are missing or altered, and which it is."""
    wanted = {c.inputs for c in plan.cases if c.inputs and c.id in records and plan.private}
    damaged = {}
    for name in sorted(wanted):
        try:
            read_inputs(inputs_file(folder, name), name)
        except FileNotFoundError:
            damaged[name] = "missing"
        except OSError:
            damaged[name] = "altered"
    return damaged


def list_copies(plan: Plan) -> dict[str, str]:
    """What people can read of a plan: the text of each file by its name."""
    return {SPEC: plan.spec, ENVIRONMENT: json.dumps(to_plain(plan.environment), indent=2) + "\n"}


def _list_names(folder: Path) -> set[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return {entry.name for entry in entries}
    return set()
