"""Run cases in worker processes, any of which may die."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from seepage.audit._record import Outcome
from seepage.audit._run_case import AnyCase, Started, announce_nothing, fail_case, run_case
from seepage.audit._spec_text import SpecSource
from seepage.core._checkpoint import checkpointing
from seepage.core._progress import listen, report
from seepage.core.errors import (
    InvalidValue,
    require_at_least,
)

# The first byte of a message says what follows.
BEGUN, PROGRESS, _WARNED, OUTCOME = b"b", b"p", b"w", b"o"
TRIES = 2
_SAFE = "PYTHONSAFEPATH"


@lru_cache(maxsize=1)
def build_cases(source: SpecSource) -> dict[str, AnyCase]:
    """Build the cases of a spec, once per worker process."""
    from seepage.audit._spec import build_spec

    return {case.id: case for case in build_spec(source).cases}


def work(link: Connection, source: SpecSource, *, threads: int, checkpoints: Path) -> None:
    """Run the case of every id that is sent, until the other end of the pipe closes."""
    # These reach all processes; the parent decides what they mean.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    # A network may warn in a thread of its own.
    sending = threading.Lock()

    def send(message: bytes) -> None:
        with sending:
            link.send_bytes(message)

    def send_progress(step: int, steps: int, objective: float) -> None:
        send(PROGRESS + json.dumps([step, steps, objective]).encode())

    def send_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_: object,
        **__: object,
    ) -> None:
        words = [str(message), category.__module__, category.__name__, filename, lineno]
        with suppress(BrokenPipeError):
            send(_WARNED + json.dumps(words).encode())

    # The parent shows warnings as it shows its own.
    warnings.showwarning = send_warning
    cases = build_cases(source)

    with checkpointing(checkpoints, inside=True), listen(send_progress):
        while True:
            try:
                case = cases[link.recv_bytes().decode()]
                send(BEGUN)
                send(OUTCOME + run_case(case).pack())
            except (EOFError, BrokenPipeError):
                return


def _exit_with_parent() -> None:
    """End this process with its parent; an orphan would disturb the resumed audit."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@dataclass(frozen=True)
class Pool:
    """Runs cases in worker processes that build the spec for themselves.

    If a worker dies, its case is tried once more, then recorded as failed. Workers share the
    threads of this process.

    Args:
        source: The spec whose cases will come.
        workers: How many processes.
        checkpoints: Folder in which long attacks save their state.
        timeout: Seconds after which a case is ended and recorded as failed; None for no limit.
    """

    source: SpecSource
    workers: int
    checkpoints: Path
    timeout: float | None = None

    def __post_init__(self) -> None:
        require_at_least(1, workers=self.workers)

    def __call__(
        self, cases: Sequence[AnyCase], started: Started = announce_nothing
    ) -> Iterator[Outcome]:
        """Run the cases, yielding outcomes as they come, in any order."""
        waiting, tried = deque(cases), Counter[str]()
        crew: list[_Worker] = []
        try:
            while waiting or any(worker.case for worker in crew):
                while waiting and (idle := self._find_idle(crew)):
                    case = waiting.popleft()
                    if started(case):
                        idle.send(case)
                for worker, case in _wait_for_messages(crew, self.timeout):
                    try:
                        outcome = worker.receive()
                    except (EOFError, ConnectionError):
                        crew.remove(worker)
                        code = worker.end()
                        tried[case.id] += 1
                        if tried[case.id] < TRIES:
                            waiting.appendleft(case)
                            continue
                        outcome = fail_case(
                            case, f"its worker died {TRIES} times (exit code {code})"
                        )
                    if outcome is not None:
                        yield outcome
                for worker in [worker for worker in crew if worker.is_late(self.timeout)]:
                    crew.remove(worker)
                    late = worker.case
                    worker.kill()
                    if late is not None and self.timeout is not None:
                        yield fail_case(late, describe_timeout(self.timeout))
        finally:
            for worker in crew:
                worker.kill()

    def _find_idle(self, crew: list[_Worker]) -> _Worker | None:
        """Find a worker without a case, or start one if there may be more."""
        for worker in crew:
            if worker.case is None:
                return worker
        if len(crew) == self.workers:
            return None
        crew.append(self._start_worker())
        return crew[-1]

    @staticmethod
    def require_allowed() -> None:
        """Raise `InvalidValue` if this process may not start others."""
        if current_process().daemon:
            raise InvalidValue(
                "expected to start worker processes, but this process is daemonic, as those of a "
                "multiprocessing.Pool are, and may start none; leave workers and timeout out"
            )

    def _start_worker(self) -> _Worker:
        self.require_allowed()
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        threads = max(1, torch.get_num_threads() // self.workers)
        process = context.Process(
            target=work,
            args=(theirs, self.source),
            kwargs={"threads": threads, "checkpoints": self.checkpoints},
            daemon=True,
        )
        with safe_path():
            process.start()
        # If we held that end too, we would not notice when the worker dies.
        theirs.close()
        return _Worker(process, ours)


@contextmanager
def safe_path() -> Iterator[None]:
    """Start Python without the current folder in its path; a worker gets that of this process."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE]
        else:
            os.environ[_SAFE] = before


def describe_timeout(seconds: float) -> str:
    """Say why a case was ended."""
    return f"it took longer than the timeout of {seconds:g} s"


def _wait_for_messages(
    crew: Sequence[_Worker], timeout: float | None
) -> list[tuple[_Worker, AnyCase]]:
    """Wait until busy workers have sent something, died or are late; list them with their cases."""
    busy = {id(worker.link): (worker, worker.case) for worker in crew if worker.case}
    if not busy:  # no case was begun
        return []
    left = None if timeout is None else min(worker.left(timeout) for worker, _ in busy.values())
    # The system cannot wait for a month at once.
    left = None if left is None else min(left, 86_400.0)
    ready = wait([worker.link for worker, _ in busy.values()], left)
    return [busy[id(link)] for link in ready]


def _show_warning(text: str, module: str, name: str, filename: str, lineno: int) -> None:
    """Show what a worker warns of; a category that is not known here is shown as any other."""
    found = getattr(sys.modules.get(module), name, None)
    if not isinstance(found, type) or not issubclass(found, Warning):
        found = UserWarning
    warnings.showwarning(text, found, filename, lineno)


class _Worker:
    """A process, the pipe to it, and the case it has in hand."""

    def __init__(self, process: SpawnProcess, link: Connection) -> None:
        self.process = process
        self.link = link
        self.case: AnyCase | None = None
        self._began: float | None = None

    def left(self, timeout: float) -> float:
        """Seconds until the case in hand is late; those of a case not begun are not counted."""
        began = time.monotonic() if self._began is None else self._began
        return max(0.0, began + timeout - time.monotonic())

    def is_late(self, timeout: float | None) -> bool:
        if timeout is None or self.case is None or self._began is None:
            return False
        return time.monotonic() >= self._began + timeout

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def send(self, case: AnyCase) -> None:
        """Send a case; a worker that has died is noticed in `receive`."""
        self.case, self._began = case, None
        with suppress(BrokenPipeError):
            self.link.send_bytes(case.id.encode())

    def receive(self) -> Outcome | None:
        """Return an outcome, or report progress or show a warning and return None."""
        message = self.link.recv_bytes()
        kind, content = message[:1], message[1:]
        if kind == OUTCOME:
            assert self.case is not None
            outcome = Outcome.unpack(content, self.case.target.truth)
            self.case = None
            return outcome
        if kind == BEGUN:
            self._began = time.monotonic()
        else:
            (report if kind == PROGRESS else _show_warning)(*json.loads(content))
        return None

    def end(self) -> int | None:
        """Wait for a process that died or was killed, and return its exit code."""
        self.link.close()
        self.process.join()
        return self.process.exitcode
