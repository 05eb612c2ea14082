"""Whether an audit is as it was written; removing what is private in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from seepage.audit._claims import CASES, FolderLock
from seepage.audit._folder import (
    CHECKPOINTS,
    INPUTS,
    SHEET,
    SUFFIX,
    case_file,
    find_checkpoints,
    find_leftovers,
    find_torn,
    inputs_file,
    list_copies,
    list_files,
    read_folder,
    remove_files,
    require_plain,
)
from seepage.audit._plan import Plan
from seepage.core._whole_file import read_plain, seal, unpack, unseal, write_whole
from seepage.core.errors import UnreadableFile


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
    except OSError as error:
        raise UnreadableFile(f"cannot purge {str(path)!r}: {error.strerror or error}") from error
    try:
        plan = Plan.read(path)
        # First, so that what is removed is never missed.
        replace(plan, private=False).write(path)
        there = {*list_files(path), *list_files(path / INPUTS), *list_files(path / CASES)}
        inputs = {inputs_file(path, case.inputs) for case in plan.cases if case.inputs}
        doomed = [
            *({path / SHEET, *inputs} & there),
            *find_checkpoints(path),
            *find_leftovers(path),
        ]
        held = [case_file(path, case.id) for case in plan.cases]
        changed = sum(_leave_out_guess(file) for file in held if file in there)
        remove_files(path, doomed)
    except OSError as error:
        raise UnreadableFile(f"cannot purge {str(path)!r}: {error.strerror or error}") from error
    finally:
        lock.release()
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
