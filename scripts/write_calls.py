"""Run a forked process, and end it or fill its disk at its n-th system call that writes.

The process is traced, so a kill falls between two calls of the kernel, such as the rename of a file
and the sync of its folder. Only calls that write into one folder count. Linux on x86-64 or ARM64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kernel:
    """The numbers of system calls that change files, and registers, of a processor.

    Args:
        descriptors: Calls whose first argument is an open file: write, pwritev, fsync and so on.
        paths: Calls that take a path, and which argument that is: rename, unlink, mkdir and so on.
        opening: `openat`, which writes only if it is asked to create.
        filling: Calls that need space on the disk.
        result: Place of the result among the registers.
        number: Place of the call's number among the registers; None if it has a set of its own.
        registers: How many there are.
    """

    descriptors: frozenset[int]
    paths: Mapping[int, int]
    opening: int
    filling: frozenset[int]
    result: int
    number: int | None
    registers: int


_KERNELS = {
    "x86_64": Kernel(
        descriptors=frozenset({1, 18, 20, 74, 75, 77, 91, 285, 296, 328}),
        paths={
            **{76: 0, 82: 0, 83: 0, 84: 0, 87: 0, 90: 0, 86: 1, 88: 1, 257: 1, 258: 1, 263: 1},
            **{264: 1, 265: 3, 266: 2, 268: 1, 316: 1},
        },
        opening=257,
        filling=frozenset({1, 18, 20, 83, 257, 258, 285, 296, 328}),
        result=10,
        number=15,
        registers=27,
    ),
    "aarch64": Kernel(
        descriptors=frozenset({46, 47, 52, 64, 66, 68, 70, 82, 83, 287}),
        paths={34: 1, 35: 1, 36: 2, 37: 3, 38: 1, 45: 0, 53: 1, 56: 1, 276: 1},
        opening=56,
        filling=frozenset({34, 47, 56, 64, 66, 68, 70, 287}),
        result=0,
        number=None,
        registers=34,
    ),
}
_TRACE_ME, _RESUME, _OPTIONS, _INFO, _READ, _WRITE = 0, 24, 0x4200, 0x420E, 0x4204, 0x4205
_MARK_CALLS, _END_WITH_TRACER = 0x1, 0x100000
_GENERAL, _ARM_NUMBER = 1, 0x404
_ENTRY = 1
_NO_CALL = -1


class Tracer:
    """A traced process."""

    def __init__(self, body: Callable[[], int], folder: Path) -> None:
        """Fork, and wait until the process can be traced."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        word, address = ctypes.c_long, ctypes.c_void_p
        self._libc.ptrace.argtypes = [word, word, address, address]
        self._libc.ptrace.restype = word
        self._kernel, self._folder = _KERNELS[platform.machine()], str(folder)
        self.pid = os.fork()
        if not self.pid:
            self._libc.ptrace(_TRACE_ME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            run_to_the_end(body)
        os.waitpid(self.pid, 0)
        self._libc.ptrace(_OPTIONS, self.pid, None, _MARK_CALLS | _END_WITH_TRACER)

    def run(self, *, kill_at: int | None = None, full_from: int | None = None) -> tuple[int, int]:
        """Let it run, to the end or up to a call that writes, which is then not made.

        Args:
            kill_at: Number of that call, from 1.
            full_from: Number of the call from which on the disk is full (ENOSPC).

        Returns:
            How it ended, as `os.waitstatus_to_exitcode` says it, and how many calls wrote.
        """
        writes, deliver, failing = 0, 0, False
        while True:
            self._libc.ptrace(_RESUME, self.pid, None, deliver)
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status), writes
            stopped_by, deliver = os.WSTOPSIG(status), 0
            if stopped_by != signal.SIGTRAP | 0x80:
                deliver = 0 if stopped_by == signal.SIGTRAP else stopped_by
            elif failing:  # the end of a call that was not made
                self._set_result(-errno.ENOSPC)
                failing = False
            elif (number := self._find_write()) is not None:
                writes += 1
                if writes == kill_at:
                    os.kill(self.pid, signal.SIGKILL)
                elif full_from is not None and writes >= full_from:
                    failing = number in self._kernel.filling
                    if failing:
                        self._skip_call()

    def _find_write(self) -> int | None:
        """Return the number of the call that begins, if it writes into the folder."""
        told = ctypes.create_string_buffer(88)
        self._libc.ptrace(_INFO, self.pid, len(told), ctypes.addressof(told))
        if told.raw[0] != _ENTRY:
            return None
        number, *arguments = struct.unpack_from("<7Q", told.raw, 24)
        creates = bool(arguments[2] & (os.O_CREAT | os.O_TRUNC))
        if number == self._kernel.opening and not creates:
            return None
        if number in self._kernel.descriptors:
            target = self._find_open(arguments[0])
        elif number in self._kernel.paths:
            target = self._read_path(arguments[self._kernel.paths[number]])
        else:
            return None
        inside = target == self._folder or target.startswith(f"{self._folder}/")
        return number if inside else None

    def _find_open(self, descriptor: int) -> str:
        try:
            return str(Path(f"/proc/{self.pid}/fd/{descriptor}").readlink())
        except OSError:
            return ""

    def _read_path(self, address: int) -> str:
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(4096).split(b"\0")[0].decode(errors="replace")

    def _skip_call(self) -> None:
        if self._kernel.number is None:
            self._transfer(_WRITE, _ARM_NUMBER, ctypes.c_int(_NO_CALL))
        else:
            self._set_register(self._kernel.number, _NO_CALL)

    def _set_result(self, value: int) -> None:
        self._set_register(self._kernel.result, value)

    def _set_register(self, place: int, value: int) -> None:
        registers = (ctypes.c_int64 * self._kernel.registers)()
        self._transfer(_READ, _GENERAL, registers)
        registers[place] = value
        self._transfer(_WRITE, _GENERAL, registers)

    def _transfer(self, request: int, which: int, content: ctypes.Array | ctypes.c_int) -> None:
        vector = (ctypes.c_uint64 * 2)(ctypes.addressof(content), ctypes.sizeof(content))
        self._libc.ptrace(request, self.pid, which, ctypes.addressof(vector))


# Seconds after which a process that does not end is ended by SIGALRM.
LONGEST = 600


def run_to_the_end(body: Callable[[], int]) -> None:
    """Run a function as all that is left of this process."""
    signal.alarm(LONGEST)
    try:
        code = body()
    except BaseException:  # noqa: BLE001 - the process must not return into its parent's code
        import traceback

        traceback.print_exc()
        code = 70
    os._exit(code)
