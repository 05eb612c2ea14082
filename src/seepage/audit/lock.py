"""One writer per directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from seepage.core.errors import InvalidValue

LOCK = "audit.lock"
_OWNER = re.compile(rb"seepage (\d+)\n")


class DirectoryLock:
    """Held by a process until it lets go or dies; the kernel sees to the latter.

    Args:
        folder: The directory to hold.

    Raises:
        InvalidValue: If another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock, or refuse at once."""
        import fcntl

        self._handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refused = _in_use(folder, self._handle)
            os.close(self._handle)
            raise refused from None
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"seepage {os.getpid()}\n".encode())

    def release(self) -> None:
        """Let go; the file stays, since a lock on a file that is gone protects nothing."""
        os.close(self._handle)


def require_unlocked(folder: Path) -> None:
    """Raise `InvalidValue` if a process holds a directory; nothing is written."""
    import fcntl

    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder, handle) from None
    finally:
        os.close(handle)


def is_lock(path: Path) -> bool:
    """Whether a file is a lock of ours; it is empty until the owner has signed it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        said = file.read(64)
    return not said or _OWNER.fullmatch(said) is not None


def _in_use(folder: Path, handle: int) -> InvalidValue:
    owner = _OWNER.fullmatch(os.read(handle, 64))
    who = f"process {owner[1].decode()}" if owner else "another process"
    return InvalidValue(f"{str(folder)!r} is in use by {who}; wait for it, or choose another --out")
