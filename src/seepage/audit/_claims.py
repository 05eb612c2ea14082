"""Who runs which case, so that several processes and machines can share a folder.

A claim is a small file that names a process. Creating it is atomic on every file system, so one
process runs a case. It is removed when the case is done. A process that dies leaves its claims, and
others take them over: on its own machine at once, elsewhere when it has not touched them for a
minute. The second process to try a case writes the claim number 2, and so on; so the numbers tell
how often a case has ended the process that ran it.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seepage.core._schema import Count, from_plain, parse_json, to_plain
from seepage.core._whole_file import PRIVATE_FILE, PRIVATE_FOLDER, read_plain, require_regular
from seepage.core.errors import InvalidValue, UnreadableFile

CASES, LOCK = "cases", "audit.lock"
# Locks are taken for a moment to begin, and shared while cases run.
_PATIENCE = 30.0
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_OWNER = re.compile(rb"seepage (\d+)\n")
# Seconds between signs of life, and without any before a process elsewhere counts as dead.
HEARTBEAT, STALE = 10.0, 60.0
_NAME = re.compile(r"([A-Za-z0-9_-]{1,100})\.\d{1,4}\.claim")
_LARGEST = 2_000


@dataclass(frozen=True)
class Worker:
    """A process that runs cases.

    Args:
        host: The name of its machine, for people.
        machine: What tells the machine from others, and from itself before it was started again.
        pid: Its number.
        began: When it began, as its machine counts; numbers of processes are used again.
        counts: Whether a case that it runs can end it.
    """

    host: str
    machine: str
    pid: Count
    began: str
    counts: bool = True

    @classmethod
    def here(cls, *, counts: bool = True) -> Worker:
        """This process."""
        pid = os.getpid()
        return cls(platform.node(), _find_machine(), pid, _find_beginning(pid), counts)

    def __str__(self) -> str:
        where = "" if self.machine == _find_machine() else f" on {self.host}"
        return f"process {self.pid}{where}"

    @property
    def ended(self) -> bool | None:
        """Whether it has ended; None if only its signs of life can tell."""
        if self.machine != _find_machine():
            return None
        return not self.began or _find_beginning(self.pid) != self.began


@cache
def _find_machine() -> str:
    try:
        # Processes in another container have numbers of their own.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def _find_beginning(pid: int) -> str:
    """When the process of this number began; empty if there is none."""
    try:
        # After the name, which may hold anything.
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            pass
        return "running"
    # A process that was killed is there until its parent asks for its end.
    return "" if words[0] in ("Z", "X") else words[19]


class Claims:
    """The claims on the cases of an audit.

    Args:
        folder: Of the audit.
    """

    def __init__(self, folder: Path) -> None:
        # The time at which a file of this process changes is the time on the disk.
        self._folder, self._clock = folder / CASES, folder / LOCK
        self._mine: dict[str, Path] = {}
        self._ending = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self, case: str, *, counts: bool = True) -> bool:
        """Claim a case; False if another process has it."""
        if case in self._mine:
            return True
        self._folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
        for number in range(1, 10_000):
            path = self._folder / f"{case}.{number}.claim"
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            except FileExistsError:
                if self._is_held(path):
                    return False
                continue
            with os.fdopen(handle, "w") as file:
                json.dump(to_plain(Worker.here(counts=counts)), file)
            self._mine[case] = path
            if self._beating is None:
                self._beating = threading.Thread(target=self._beat, daemon=True)
                self._beating.start()
            return True
        return False

    def release(self, case: str) -> None:
        """Remove every claim on a case that is done."""
        if (own := self._mine.pop(case, None)) is not None:
            for number in range(1, int(own.stem.rpartition(".")[2]) + 1):
                (self._folder / f"{case}.{number}.claim").unlink(missing_ok=True)

    def give_back(self) -> None:
        """Remove the claims of this process, which is about to end by itself."""
        while self._mine:
            self._mine.popitem()[1].unlink(missing_ok=True)

    def forget_unwritten(self) -> None:
        """Remove claims that a kill left empty; nobody else may be at work."""
        for _, path in self.list_files():
            if _read(path) is None:
                path.unlink(missing_ok=True)

    def tries(self) -> dict[str, int]:
        """How many processes died while they ran each case."""
        found: dict[str, int] = {}
        for case, path in self.list_files():
            worker = _read(path)
            if not self._is_held(path) and (worker is None or worker.counts):
                found[case] = found.get(case, 0) + 1
        return found

    def others(self) -> list[str]:
        """Describe the other processes that hold claims."""
        held = [path for _, path in self.list_files() if self._is_held(path)]
        found = [_read(path) for path in held if path not in self._mine.values()]
        return list(dict.fromkeys(str(worker) for worker in found if worker))

    def list_files(self) -> list[tuple[str, Path]]:
        """List the claims, whoever holds them: the case of each, and the file."""
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            found = [_NAME.fullmatch(entry.name) for entry in entries]
            return [(one[1], self._folder / one[0]) for one in found if one]
        return []

    def close(self) -> None:
        """Give no further signs of life."""
        self._ending.set()

    def _is_held(self, path: Path) -> bool:
        worker = _read(path)
        if worker is not None and worker.ended is not None:
            return not worker.ended
        try:
            os.utime(self._clock)
            return abs(self._clock.stat().st_mtime - path.lstat().st_mtime) < STALE
        except FileNotFoundError:
            return False

    def _beat(self) -> None:
        while not self._ending.wait(HEARTBEAT):
            for path in list(self._mine.values()):
                with suppress(OSError):
                    os.utime(path, follow_symlinks=False)


def _read(path: Path) -> Worker | None:
    """Read who holds a claim; None if that is not written yet, or the claim is gone."""
    try:
        text = read_plain(path, largest=_LARGEST).decode()
        return from_plain(Worker, parse_json(text, "a claim"))
    except (OSError, UnicodeError, UnreadableFile):
        return None


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
            workers = Claims(folder).others()
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


def is_lock(file: Path) -> bool:
    """Whether a file is the lock of an audit, by what is in it."""
    with file.open("rb") as opened:
        owner = opened.read(64)
    # It is empty until its owner has written the process id.
    return not owner or _OWNER.fullmatch(owner) is not None
