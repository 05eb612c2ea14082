"""Run a forked process and end it at its n-th system call that writes.

The process is traced, so the kill falls between two calls of the kernel: also inside a commit of
SQLite, and between the rename of a file and the sync of its folder. Linux on x86-64 or ARM64.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable

# write, pwritev, rename and so on, by processor; each changes a file or a folder.
_CALLS = {
    "x86_64": {
        1, 18, 20, 74, 75, 76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 257, 258, 263, 264, 265,
        266, 268, 285, 296, 316, 328, 437,
    },
    "aarch64": {64, 68, 66, 70, 82, 83, 45, 46, 34, 35, 36, 37, 38, 276, 47, 52, 53, 56, 287, 437},
}  # fmt: skip
# Those that only write if they are asked to create: openat.
_OPENING = {"x86_64": 257, "aarch64": 56}
_TRACE_ME, _RESUME, _OPTIONS, _INFO = 0, 24, 0x4200, 0x420E
_MARK_CALLS, _END_WITH_TRACER = 0x1, 0x100000
_ENTRY = 1


class Tracer:
    """A traced process.

    Args:
        body: What it runs; its end is that of the process.
    """

    def __init__(self, body: Callable[[], int]) -> None:
        """Fork, and wait until the process can be traced."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        word, address = ctypes.c_long, ctypes.c_void_p
        self._libc.ptrace.argtypes = [word, word, address, address]
        self._libc.ptrace.restype = word
        self._calls, self._opening = _CALLS[platform.machine()], _OPENING[platform.machine()]
        self.pid = os.fork()
        if not self.pid:
            self._libc.ptrace(_TRACE_ME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            run_to_the_end(body)
        os.waitpid(self.pid, 0)
        self._libc.ptrace(_OPTIONS, self.pid, None, _MARK_CALLS | _END_WITH_TRACER)

    def run(self, kill_at: int | None = None) -> tuple[int, int]:
        """Let it run, to the end or up to a call that writes, which is then not made.

        Args:
            kill_at: Number of that call, from 1.

        Returns:
            How it ended, as `os.waitstatus_to_exitcode` says it, and how many calls wrote.
        """
        writes, deliver = 0, 0
        while True:
            self._libc.ptrace(_RESUME, self.pid, None, deliver)
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status), writes
            stopped_by, deliver = os.WSTOPSIG(status), 0
            if stopped_by != signal.SIGTRAP | 0x80:
                deliver = 0 if stopped_by == signal.SIGTRAP else stopped_by
            elif self._is_write():
                writes += 1
                if writes == kill_at:
                    os.kill(self.pid, signal.SIGKILL)

    def _is_write(self) -> bool:
        told = ctypes.create_string_buffer(88)
        self._libc.ptrace(_INFO, self.pid, len(told), ctypes.addressof(told))
        if told.raw[0] != _ENTRY:
            return False
        number, _, _, flags = struct.unpack_from("<4Q", told.raw, 24)
        creates = bool(flags & (os.O_CREAT | os.O_TRUNC))
        return number in self._calls and (number != self._opening or creates)


# Seconds after which a process that does not end is ended.
_LONGEST = 120


def run_to_the_end(body: Callable[[], int]) -> None:
    """Run a function as all that is left of this process."""
    signal.alarm(_LONGEST)
    try:
        code = body()
    except BaseException:  # noqa: BLE001 - the process must not return into its parent's code
        import traceback

        traceback.print_exc()
        code = 70
    os._exit(code)
