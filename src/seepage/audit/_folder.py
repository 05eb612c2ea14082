"""The folder of an audit: what is in it, whether it is whole, and what of it may be removed.

    plan.json                 what runs, the spec and the environment
    spec.toml                 copies of the two, for people
    environment.json
    cases/ID.safetensors      a finished case: its record, its guess, the course of its objective
    cases/ID.1.claim          the process that runs a case
    inputs/DIGEST.safetensors private inputs, once for all cases that share them
    checkpoints/              states of unfinished attacks

A case is finished if its file is there and whole. A folder may come from somebody else. Links in it
are never followed, and nothing but plain files is opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from seepage.audit._claims import CASES, LOCK, Claims, FolderLock, is_lock
from seepage.audit._plan import PLAN, Plan, Planned, read_format, require_format
from seepage.audit._record import Record
from seepage.core._checkpoint import Checkpoints
from seepage.core._schema import parse_json, to_plain
from seepage.core._whole_file import (
    is_partial,
    read_plain,
    seal,
    unpack,
    unseal,
    write_whole,
)
from seepage.core.errors import InvalidValue, UnreadableFile

INPUTS, CHECKPOINTS = "inputs", "checkpoints"
SPEC = "spec.toml"
ENVIRONMENT = "environment.json"
SHEET = "contact_sheet.png"
PAGE = "report.html"
SUFFIX = ".safetensors"

_FOLDERS = (CASES, INPUTS, CHECKPOINTS)
_FILES = (PLAN, SPEC, ENVIRONMENT, PAGE, SHEET, LOCK)
# Checkpoints are named by fingerprints, which are not known when the audit begins.
_CHECKPOINT = re.compile(rf"(race-|decoder-)?[0-9a-f]{{24}}{re.escape(SUFFIX)}")


def case_file(folder: Path, case: str) -> Path:
    """Where the result of a case is."""
    return folder / CASES / f"{case}{SUFFIX}"


def inputs_file(folder: Path, name: str) -> Path:
    """Where private inputs are."""
    return folder / INPUTS / f"{name}{SUFFIX}"


def require_plain(path: Path) -> None:
    """Raise unless a folder holds an audit of this version, without links, pipes or devices."""
    require_format(path)
    for place in (path / name for name in (*_FOLDERS, *_FILES)):
        with suppress(FileNotFoundError):
            _require_own(place, place.lstat().st_mode)
    for name in _FOLDERS:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path / name) as entries:
            for one in entries:
                if not one.is_file(follow_symlinks=False):
                    _require_own(path / name / one.name, one.stat(follow_symlinks=False).st_mode)
    with suppress(FileNotFoundError):
        if (path / LOCK).stat().st_nlink > 1:
            raise InvalidValue(
                f"{str(path / LOCK)!r} is a hard link, so another file would change with it; copy "
                "the folder and use the copy"
            )


def require_free(path: Path) -> None:
    """Raise `InvalidValue` if a result may not be written here, since an audit needs this file."""
    if path.is_dir():
        raise InvalidValue(f"expected --out to name a file, but {str(path)!r} is a folder")
    kept = path.name in (PLAN, LOCK, SPEC, ENVIRONMENT) and (path.parent / PLAN).is_file()
    inside = path.parent.name in _FOLDERS
    if kept or (inside and (path.parent.parent / PLAN).is_file()):
        raise InvalidValue(
            f"{str(path)!r} belongs to an audit, which needs it; choose another --out"
        )


def _require_own(place: Path, mode: int) -> None:
    """Raise if something is there that no audit writes."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a link, which is never followed" if stat.S_ISLNK(mode) else "a pipe or device"
        raise InvalidValue(
            f"expected what an audit wrote at {str(place)!r}, got {what}; remove it, or choose "
            "another --out"
        )


def holds_audit(path: Path) -> bool:
    """Whether an audit is in a directory; False if one can begin there.

    An audit can begin in an empty directory, or where another was killed before it had a plan.
    Nothing is written.

    Raises:
        InvalidValue: If the directory holds anything else.
        UnreadableFile: If the audit has another format.
    """
    there = [file.name for file in path.iterdir()] if path.is_dir() else []
    # After listing: a process that begins an audit here right now writes the plan first.
    if read_format(path) is not None:
        require_plain(path)
        return True
    is_free = path.is_dir() or not (path.exists() or path.is_symlink())
    if not is_free or not all(_is_leftover(path / name) for name in there):
        raise InvalidValue(
            f"expected --out to name a new directory, but {str(path)!r} holds something else"
        )
    return False


def _is_leftover(place: Path) -> bool:
    """Whether an audit that was killed at its beginning may have left this file."""
    if place.is_symlink():
        return False
    if place.name == LOCK and place.is_file():
        return is_lock(place)
    # It may be gone by now, if the audit that makes it is still alive.
    partial = is_partial(place.name, lambda name: name == PLAN)
    return partial and (place.is_file() or not place.exists())


def find_checkpoints(path: Path) -> list[Path]:
    """Find the states of interrupted attacks, and the races of `auto`."""
    return [file for file in list_files(path / CHECKPOINTS) if _CHECKPOINT.fullmatch(file.name)]


def find_torn(path: Path) -> list[Path]:
    """Find the checkpoints that are not whole."""
    checkpoints = Checkpoints(path / CHECKPOINTS)
    return [file for file in find_checkpoints(path) if not checkpoints.is_whole(file.stem)]


def find_leftovers(path: Path) -> Iterator[Path]:
    """Find what a kill left of files that were being written; nobody else may be at work."""
    named = {PLAN, SPEC, ENVIRONMENT, PAGE, SHEET}.__contains__
    for file in list_files(path):
        if is_partial(file.name, named):
            yield file
    for name in _FOLDERS:
        for file in list_files(path / name):
            if is_partial(file.name, lambda one: one.endswith(SUFFIX)):
                yield file


def find_written(path: Path, plan: Plan) -> list[Path]:
    """Find every file that an audit wrote, but for its plan and its lock.

    They are known by their names: a `report.html` that somebody else put there is one of them.
    """
    named = {
        *(path / name for name in (SPEC, ENVIRONMENT, PAGE, SHEET)),
        *(case_file(path, case.id) for case in plan.cases),
        *(inputs_file(path, case.inputs) for case in plan.cases if case.inputs),
    }
    ids = {case.id for case in plan.cases}
    claims = [file for case, file in Claims(path).list_files() if case in ids]
    there = [file for folder in (path, path / CASES, path / INPUTS) for file in list_files(folder)]
    found = [file for file in there if file in named]
    return [*found, *claims, *find_checkpoints(path), *find_leftovers(path)]


def remove_files(path: Path, files: list[Path]) -> None:
    """Remove these files of an audit, and its folders where nothing else is in them."""
    for file in files:
        file.unlink(missing_ok=True)
    for name in _FOLDERS:
        with suppress(OSError):  # somebody keeps something else there
            (path / name).rmdir()


def list_files(folder: Path) -> list[Path]:
    """List the files in a folder; none if it is a link or not there."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return [folder / one.name for one in entries if one.is_file(follow_symlinks=False)]


@dataclass(frozen=True)
class Held:
    """What a folder holds of an audit.

    Args:
        records: The records of finished cases by their ids, in the order of the plan.
        damaged: Files of finished cases and of their private inputs that are missing or were
            altered, and which it is.
    """

    records: dict[str, Record]
    damaged: dict[Path, str]


def read_records(
    folder: Path, plan: Plan, known: Mapping[str, Record] = MappingProxyType({})
) -> Held:
    """Read every finished case, but for the records that are `known`."""
    held = Held({}, {})
    there = {file.name for file in list_files(folder / CASES)}
    for planned in plan.cases:
        file = case_file(folder, planned.id)
        if planned.id in known:
            held.records[planned.id] = known[planned.id]
        elif file.name in there:
            try:
                held.records[planned.id] = read_record(file, planned)
            except FileNotFoundError:
                continue
            except OSError as error:
                held.damaged[file] = f"altered: {error.strerror or error}"
    return held


def read_record(file: Path, planned: Planned) -> Record:
    """Read the record in the file of a case.

    Raises:
        UnreadableFile: If any byte of the file was altered, or it belongs to another case.
        FileNotFoundError: If the case is not done.
    """
    words = unseal(read_plain(file))
    record = Record.from_plain(parse_json(words.get("record", ""), "its record"))
    if record.case != planned.id or planned.inputs not in ("", record.truth):
        raise UnreadableFile("it belongs to another case")
    return record


def read_folder(folder: Path, plan: Plan) -> Held:
    """Read every finished case, and check the private inputs of each."""
    held = read_records(folder, plan)
    wanted = {c.inputs for c in plan.cases if c.inputs and c.id in held.records and plan.private}
    for name in sorted(wanted):
        file = inputs_file(folder, name)
        try:
            if unseal(read_plain(file)).get("name") != name:
                raise UnreadableFile("it holds other inputs")
        except FileNotFoundError:
            held.damaged[file] = "missing"
        except OSError:
            held.damaged[file] = "altered"
    return held


def list_copies(plan: Plan) -> dict[str, str]:
    """What people can read of a plan: the text of each file by its name."""
    return {SPEC: plan.spec, ENVIRONMENT: json.dumps(to_plain(plan.environment), indent=2) + "\n"}


def find_damage(path: Path | str) -> list[str]:
    """List missing or altered files of an audit, and files that are not its own. Read-only.

    Checksums tell accidents, not an adversary: whoever can write to the folder can also write the
    checksums.

    Raises:
        SeepageError: If there is no audit, or its plan cannot be used at all.
    """
    path = Path(path)
    require_plain(path)
    plan = Plan.read(path)
    damaged = read_folder(path, plan).damaged.items()
    found = [f"{file.relative_to(path)} is {how}" for file, how in damaged]
    ours = {case_file(path, case.id) for case in plan.cases}
    foreign = sorted(
        f.name for f in list_files(path / CASES) if f.suffix == SUFFIX and f not in ours
    )
    found += [f"{CASES}/{name} belongs to no case of this audit" for name in foreign]
    found += [f"{name} is {how}" for name, how in _compare(path, list_copies(plan))]
    return [*found, *(f"{CHECKPOINTS}/{file.name} is altered" for file in find_torn(path))]


def _compare(path: Path, copies: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in copies.items():
        try:
            if read_plain(path / name) != text.encode():
                yield name, "not what the plan holds"
        except FileNotFoundError:
            yield name, "missing"


def purge(path: Path | str) -> int:
    """Remove private inputs, guesses, checkpoints and pictures of an audit; its records stay.

    The page `report.html` shows them too: write it again afterwards. What a disk or a backup still
    holds of removed files is beyond this. Returns the number of files that were removed, or written
    again without a guess.

    Raises:
        SeepageError: If there is no audit, or another process is using it.
    """
    path = Path(path)
    require_plain(path)
    try:
        lock = FolderLock(path)
        try:
            return _purge(path, Plan.read(path))
        finally:
            lock.release()
    except OSError as error:
        raise UnreadableFile(f"cannot purge {str(path)!r}: {error.strerror or error}") from error


def _purge(path: Path, plan: Plan) -> int:
    # First, so that what is removed is never missed.
    replace(plan, private=False).write(path)
    cases = {case_file(path, case.id) for case in plan.cases}
    changed = sum(_leave_out_guess(file) for file in list_files(path / CASES) if file in cases)
    inputs = {inputs_file(path, case.inputs) for case in plan.cases if case.inputs}
    there = [*list_files(path), *list_files(path / INPUTS)]
    doomed = [file for file in there if file == path / SHEET or file in inputs]
    doomed += [*find_checkpoints(path), *find_leftovers(path)]
    remove_files(path, doomed)
    return len(doomed) + changed


def _leave_out_guess(file: Path) -> bool:
    """Write the file of a case without what is private in it; one that is damaged is removed."""
    try:
        data = read_plain(file)
        words, tensors = unseal(data), unpack(data)[0]
    except UnreadableFile:
        file.unlink()
        return True
    is_private = "guess" in tensors or "said" in words
    if is_private:
        tensors.pop("guess", None)
        words.pop("said", None)
        write_whole(file, seal(tensors, words))
    return is_private
