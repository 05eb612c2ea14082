"""The folder of an audit: what may be in it, who holds it, and what of it may be removed.

A folder may come from somebody else. Links in it are never followed, and nothing but plain files is
opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath

from seepage.audit.artifacts import SUFFIX
from seepage.audit.database import (
    ARTIFACT,
    ARTIFACTS,
    DATABASE,
    TEMPORARY,
    Database,
    read_format,
    require_database,
)
from seepage.core.errors import InvalidValue
from seepage.core.whole_file import PRIVATE_FILE, read_plain, require_regular

CHECKPOINTS = "checkpoints"
SPEC = "spec.toml"
ENVIRONMENT = "environment.json"
SHEET = "contact_sheet.png"
PAGE = "report.html"
LOCK = "audit.lock"
PARTIAL = ".partial"

_WHOLE = (SPEC, ENVIRONMENT, PAGE, SHEET)
# Files that an audit may write beside its database.
BESIDE = (*_WHOLE, *(f".{name}{PARTIAL}" for name in _WHOLE))
_JOURNAL = f"{DATABASE}-journal"
_SQLITE = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", _JOURNAL)
# SQLite writes into these; another name of the same file would be changed too.
_WRITTEN = (*_SQLITE, LOCK)
_OWNER = re.compile(rb"seepage (\d+)\n")
# Checkpoints are named by fingerprints, which are not known when the audit begins.
_CHECKPOINT = re.compile(
    rf"(race-)?[0-9a-f]{{24}}({re.escape(SUFFIX)}|(-\d+)?{re.escape(PARTIAL)})"
)
# A journal that ends so names a file that SQLite would delete.
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")


def require_plain(path: Path) -> None:
    """Raise unless a folder holds an audit of this version, without links, pipes or devices."""
    require_database(path / DATABASE)
    folders = [path / ARTIFACTS, path / CHECKPOINTS]
    for place in (*folders, *(path / name for name in (*_SQLITE, *BESIDE, LOCK, TEMPORARY))):
        _require_own(place)
    for folder in folders:
        for place in folder.iterdir() if folder.is_dir() else ():
            _require_own(place)
    for name in _WRITTEN:
        with suppress(FileNotFoundError):
            if (path / name).stat().st_nlink > 1:
                raise InvalidValue(
                    f"{str(path / name)!r} is a hard link, so another file would change with it; "
                    "copy the folder and use the copy"
                )
    journal = path / _JOURNAL
    if journal.is_file() and read_plain(journal).endswith(_NAMES_ANOTHER):
        raise InvalidValue(f"{str(journal)!r} names another file, as none of an audit; remove it")


def require_free(path: Path) -> None:
    """Raise `InvalidValue` if a result may not be written here, since an audit needs this file."""
    if path.is_dir():
        raise InvalidValue(f"expected --out to name a file, but {str(path)!r} is a folder")
    kept = path.name in (*_WRITTEN, SPEC, ENVIRONMENT) and (path.parent / DATABASE).is_file()
    inside = path.parent.name in (ARTIFACTS, CHECKPOINTS)
    if kept or (inside and (path.parent.parent / DATABASE).is_file()):
        raise InvalidValue(
            f"{str(path)!r} belongs to an audit, which needs it; choose another --out"
        )


def _require_own(place: Path) -> None:
    """Raise if something is there that no audit writes."""
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a link, which is never followed" if stat.S_ISLNK(mode) else "a pipe or device"
        raise InvalidValue(
            f"expected what an audit wrote at {str(place)!r}, got {what}; remove it, or choose "
            "another --out"
        )


class DirectoryLock:
    """A lock on a directory, held until this process releases it or dies."""

    def __init__(self, folder: Path) -> None:
        """Take the lock; raise `InvalidValue` if another process holds it."""
        import fcntl

        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._handle = os.open(folder / LOCK, flags, PRIVATE_FILE)
        try:
            require_regular(folder / LOCK, os.fstat(self._handle))
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refused = _in_use(folder, self._handle)
            os.close(self._handle)
            raise refused from None
        except OSError:
            os.close(self._handle)
            raise
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"seepage {os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the lock; the file stays, since a lock on a deleted file protects nothing."""
        os.close(self._handle)


def require_unlocked(folder: Path) -> None:
    """Raise `InvalidValue` if a process holds a directory, without writing anything."""
    import fcntl

    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder, handle) from None
    finally:
        os.close(handle)


def _in_use(folder: Path, handle: int) -> InvalidValue:
    owner = _OWNER.fullmatch(os.read(handle, 64))
    who = f"process {owner[1].decode()}" if owner else "another process"
    return InvalidValue(f"{str(folder)!r} is in use by {who}; wait for it, or choose another --out")


def holds_audit(path: Path) -> bool:
    """Whether an audit is in a directory; False if one can begin there.

    An audit can begin in an empty directory, or where another was killed before it had a database.
    Nothing is written.

    Raises:
        InvalidValue: If the directory holds anything else.
        UnreadableFile: If the audit has another format.
    """
    there = [file.name for file in path.iterdir()] if path.is_dir() else []
    # After listing: a process that begins an audit here right now makes the database first.
    if read_format(path / DATABASE) is not None:
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
        with place.open("rb") as file:
            owner = file.read(64)
        # The file is empty until its owner has written the process id.
        return not owner or _OWNER.fullmatch(owner) is not None
    # It may be gone by now, if the audit that makes it is still alive.
    return place.name == TEMPORARY and (place.is_file() or not place.exists())


def remove_files(path: Path) -> None:
    """Remove an earlier audit's files by their names; its database stays, without records.

    The database lists the files that an audit may write, not those it wrote: a `report.html` that
    somebody else put there is removed too. Checkpoints are recognised by the form of their names.
    If this is killed, what is left can be resumed or overwritten.

    Raises:
        InvalidValue: If something else has the name of a file of the audit; nothing is removed.
    """
    with closing(Database(path / DATABASE)) as database:
        files = [*_find_written(path, database.files()), *find_checkpoints(path)]
        database.empty()
    for file in files:
        file.unlink(missing_ok=True)
    for folder in (path / ARTIFACTS, path / CHECKPOINTS):
        with suppress(OSError):  # somebody keeps something else there
            folder.rmdir()


def _find_written(path: Path, names: Iterable[str]) -> Iterator[Path]:
    """Find the files of a list that exist."""
    for name in names:
        parts = PurePosixPath(name).parts
        place = path.joinpath(*parts)
        if name not in BESIDE and not ARTIFACT.fullmatch(name):
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
    """Find the states of interrupted attacks, whole or not, and the races of `auto`."""
    folder = path / CHECKPOINTS
    return [
        file
        for file in (folder.iterdir() if folder.is_dir() else ())
        if _CHECKPOINT.fullmatch(file.name) and file.is_file() and not file.is_symlink()
    ]
