"""The folder of an audit: what may be in it, who holds it, and what of it may be removed.

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

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from seepage.audit._claims import Claims
from seepage.audit._plan import PLAN, Plan, read_format, require_format
from seepage.core._whole_file import PRIVATE_FILE, is_partial, require_regular
from seepage.core.errors import InvalidValue

CASES, INPUTS, CHECKPOINTS = "cases", "inputs", "checkpoints"
SPEC = "spec.toml"
ENVIRONMENT = "environment.json"
SHEET = "contact_sheet.png"
PAGE = "report.html"
LOCK = "audit.lock"
SUFFIX = ".safetensors"

_FOLDERS = (CASES, INPUTS, CHECKPOINTS)
_FILES = (PLAN, SPEC, ENVIRONMENT, PAGE, SHEET, LOCK)
_OWNER = re.compile(rb"seepage (\d+)\n")
# Checkpoints are named by fingerprints, which are not known when the audit begins.
_CHECKPOINT = re.compile(rf"(race-|decoder-)?[0-9a-f]{{24}}{re.escape(SUFFIX)}")
# Locks are taken for a moment to begin, and shared while cases run.
_PATIENCE = 30.0
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def case_file(folder: Path, case: str) -> Path:
    """Where the result of a case is."""
    return folder / CASES / f"{case}{SUFFIX}"


def inputs_file(folder: Path, name: str) -> Path:
    """Where private inputs are."""
    return folder / INPUTS / f"{name}{SUFFIX}"


def require_plain(path: Path) -> None:
    """Raise unless a folder holds an audit of this version, without links, pipes or devices."""
    require_format(path)
    for place in (*(path / name for name in _FOLDERS), *(path / name for name in _FILES)):
        with suppress(FileNotFoundError):
            _require_own(place, place.lstat().st_mode)
    for name in _FOLDERS:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path / name) as entries:
            odd = [
                path / name / one.name for one in entries if not one.is_file(follow_symlinks=False)
            ]
            for place in odd:
                _require_own(place, place.lstat().st_mode)
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


class FolderLock:
    """This process's hold on a folder, until it is released or the process dies.

    Those who run cases share the folder. Beginning an audit, mending, replacing and purging need it
    alone. Where the disk has no locks, claims alone tell who works in it.

    Attributes:
        alone: Whether nobody else works in the folder.
    """

    def __init__(self, folder: Path, *, share: bool = False) -> None:
        """Take the folder alone; with `share`, also if others work in it.

        Raises:
            InvalidValue: If another process needs it alone, or works in it and `share` is not set.
        """
        self.folder = folder
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._handle = os.open(folder / LOCK, flags, PRIVATE_FILE)
        try:
            require_regular(folder / LOCK, os.fstat(self._handle))
            free = self._take_alone(share=share)
            workers = Claims(folder / CASES, folder / LOCK).others()
            self.alone = free and not workers
            if not self.alone and not share:
                raise _in_use(folder, self._handle, workers)
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"seepage {os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self._handle)
            raise

    def _take_alone(self, *, share: bool) -> bool:
        """Whether nobody else held it; else it is shared with those who run cases."""
        import fcntl

        ends = time.monotonic() + _PATIENCE
        while True:
            for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                try:
                    fcntl.flock(self._handle, kind | fcntl.LOCK_NB)
                    return kind == fcntl.LOCK_EX
                except BlockingIOError:
                    continue
                except OSError as error:
                    if error.errno in _NO_LOCKS:
                        return True
                    raise
            if not share or time.monotonic() > ends:
                raise _in_use(self.folder, self._handle, [])
            time.sleep(0.05)

    def share(self) -> None:
        """Let others run cases too."""
        import fcntl

        with suppress(OSError):
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)

    @property
    def is_there(self) -> bool:
        """Whether the folder is the one that was taken: not moved, removed or replaced."""
        try:
            now, then = (self.folder / LOCK).lstat(), os.fstat(self._handle)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)

    def release(self) -> None:
        """Release it; the file stays, since a lock on a deleted file protects nothing."""
        os.close(self._handle)


def require_unlocked(folder: Path) -> None:
    """Raise `InvalidValue` if a process works in a folder, without writing anything."""
    import fcntl

    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder, handle, []) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    finally:
        os.close(handle)


class InUse(InvalidValue):
    """Another process works in a folder."""


def _in_use(folder: Path, handle: int, workers: list[str]) -> InUse:
    owner = _OWNER.fullmatch(os.pread(handle, 64, 0))
    who = workers or [f"process {owner[1].decode()}" if owner else "another process"]
    more = f" and {len(who) - 1} more" if len(who) > 1 else ""
    return InUse(
        f"{str(folder)!r} is in use by {who[0]}{more}; wait for it, or choose another --out"
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
        with place.open("rb") as file:
            owner = file.read(64)
        # The file is empty until its owner has written the process id.
        return not owner or _OWNER.fullmatch(owner) is not None
    # It may be gone by now, if the audit that makes it is still alive.
    partial = is_partial(place.name, lambda name: name == PLAN)
    return partial and (place.is_file() or not place.exists())


def find_checkpoints(path: Path) -> list[Path]:
    """Find the states of interrupted attacks, and the races of `auto`."""
    return [file for file in list_files(path / CHECKPOINTS) if _CHECKPOINT.fullmatch(file.name)]


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
    claims = [file for case, file in Claims(path / CASES, path / LOCK).list_files() if case in ids]
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
