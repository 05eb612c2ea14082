"""What an audit writes into its directory, and making room for another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from seepage.audit.artifacts import SUFFIX
from seepage.audit.database import (
    DATABASE,
    TEMPORARY,
    Database,
    read_format,
    require_database,
)
from seepage.audit.lock import LOCK, is_lock
from seepage.audit.result import ARTIFACTS
from seepage.core.errors import InvalidValue

SPEC = "spec.toml"
ENVIRONMENT = "environment.json"
SHEET = "contact_sheet.png"
PAGE = "report.html"
CHECKPOINTS = "checkpoints"

PARTIAL = ".partial"

_WHOLE = (SPEC, ENVIRONMENT, PAGE)
_BESIDE = (*_WHOLE, *(f".{name}{PARTIAL}" for name in _WHOLE), SHEET)
_SQLITE = tuple(f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal"))

# Checkpoints are named by fingerprints, which are not known when the audit begins.
_CHECKPOINT = re.compile(rf"[0-9a-f]{{24}}({re.escape(SUFFIX)}|{re.escape(PARTIAL)})")


def list_files(artifacts: Iterable[str]) -> list[str]:
    """Every file that an audit with these artifacts may write, relative to its directory.

    The list is stored when the audit begins, while none of these files is there.
    """
    return [*_BESIDE, *(f"{ARTIFACTS}/{name}{SUFFIX}" for name in dict.fromkeys(artifacts))]


def require_audit(path: Path) -> None:
    """Raise unless a directory holds an audit that this version can go on with."""
    require_database(path / DATABASE)
    for name in (*_SQLITE, *_BESIDE, LOCK, TEMPORARY, ARTIFACTS, CHECKPOINTS):
        if (path / name).is_symlink():
            raise InvalidValue(
                f"expected what an audit wrote at {str(path / name)!r}, got a link, which is "
                "never followed; remove it, or choose another --out"
            )


def holds_audit(path: Path) -> bool:
    """Whether an audit is in a directory; False if one can begin there.

    Only reads. Beside an empty directory, one can begin where another was killed before its
    database was there.

    Raises:
        InvalidValue: If the directory holds anything else.
        UnreadableFile: If the audit has another format.
    """
    there = [file.name for file in path.iterdir()] if path.is_dir() else []
    # After listing: whoever begins an audit here right now makes the database first.
    if read_format(path / DATABASE) is not None:
        require_audit(path)
        return True
    is_free = path.is_dir() or not (path.exists() or path.is_symlink())
    if not is_free or not all(_is_leftover(path / name) for name in there):
        raise InvalidValue(
            f"expected --out to name a new directory, but {str(path)!r} holds something else"
        )
    return False


def _is_leftover(place: Path) -> bool:
    """Whether a kill while an audit began may have left this file."""
    if place.is_symlink():
        return False
    if place.name == LOCK:
        return is_lock(place)
    # It may be gone by now, if the audit that makes it is still alive.
    return place.name == TEMPORARY and (place.is_file() or not place.exists())


def remove_files(path: Path) -> None:
    """Remove an earlier audit's files by their names; its database stays, without records.

    The names were reserved when the audit began, but whether it wrote a file is not recorded: a
    `report.html` that somebody put there later is removed too. Checkpoints are known by the form
    of their names. Whenever this is killed, an audit is left that can be resumed or overwritten.

    Args:
        path: The directory, held by this process.

    Raises:
        InvalidValue: If something else has the name of a file of the audit; nothing is removed.
    """
    database = Database(path / DATABASE)
    try:
        files = [*_written(path, database.files()), *find_checkpoints(path)]
        database.empty()
    finally:
        database.close()
    for file in files:
        file.unlink(missing_ok=True)
    for folder in (path / ARTIFACTS, path / CHECKPOINTS):
        with suppress(OSError):  # somebody keeps something else there
            folder.rmdir()


def _written(path: Path, names: Iterable[str]) -> Iterator[Path]:
    """The files of a list that are there."""
    for name in names:
        parts = PurePosixPath(name).parts
        place = path.joinpath(*parts)
        inside = len(parts) == 1 or (len(parts) == 2 and parts[0] == ARTIFACTS)
        if ".." in parts or not inside:
            raise InvalidValue(f"the audit in {str(path)!r} lists {name!r}, which it cannot write")
        partial = [place.with_suffix(PARTIAL)] if len(parts) == 2 else []
        for file in (place, *partial):
            if file.is_symlink() or (file.exists() and not file.is_file()):
                raise InvalidValue(
                    f"expected a file that the audit wrote at {str(file)!r}, got a link or a "
                    "folder; move it away, or choose another --out"
                )
            if file.exists():
                yield file


def find_checkpoints(path: Path) -> list[Path]:
    """The states of attacks that were interrupted, whole or not."""
    folder = path / CHECKPOINTS
    return [
        file
        for file in (folder.iterdir() if folder.is_dir() else ())
        if _CHECKPOINT.fullmatch(file.name) and file.is_file() and not file.is_symlink()
    ]
