"""One writer per directory."""

from __future__ import annotations

import os
from pathlib import Path

from seepage.core.errors import InvalidValue

LOCK = "audit.lock"


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

        self._handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._handle, 32).decode(errors="replace").strip()
            os.close(self._handle)
            who = f"process {owner}" if owner else "another process"
            raise InvalidValue(
                f"{str(folder)!r} is in use by {who}; wait for it, or choose another --out"
            ) from None
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let go; the file stays, since a lock on a file that is gone protects nothing."""
        os.close(self._handle)
