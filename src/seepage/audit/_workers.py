"""Run cases in worker processes, any of which may die, or as Ray tasks."""

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
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType, ModuleType

import torch

from seepage.audit._record import Outcome
from seepage.audit._run_case import AnyCase, Started, announce_nothing, fail_case, run_case
from seepage.audit._spec_text import SpecSource
from seepage.core._checkpoint import checkpointing
from seepage.core._progress import listen, report
from seepage.core.errors import (
    InvalidValue,
    SeepageError,
    UnknownName,
    import_extra,
    require_at_least,
    summarise_error,
)

# The first byte of a message says what follows.
BEGUN, PROGRESS, _WARNED, OUTCOME = b"b", b"p", b"w", b"o"
TRIES = 2
# The address on which a cluster that is started here listens.
HOST = "SEEPAGE_RAY_HOST"
_SAFE = "PYTHONSAFEPATH"
# Seconds after which Ray knows that a machine is lost.
_NOTICED = 20


@lru_cache(maxsize=1)
def _build_cases(source: SpecSource) -> dict[str, AnyCase]:
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
    cases = _build_cases(source)

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
                        yield fail_case(late, _describe_timeout(self.timeout))
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
        with _safe_path():
            process.start()
        # If we held that end too, we would not notice when the worker dies.
        theirs.close()
        return _Worker(process, ours)


@contextmanager
def _safe_path() -> Iterator[None]:
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


def _describe_timeout(seconds: float) -> str:
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


@dataclass(frozen=True)
class RayCluster:
    """Runs cases as tasks of Ray, each with one CPU, and one GPU if the spec runs on CUDA.

    The cluster is that of `RAY_ADDRESS`, or one started here while the audit runs, which other
    machines reach only if SEEPAGE_RAY_HOST names an address of this one. A task whose worker died
    runs once more; then the case is recorded as failed. Cases that are lost with the cluster run
    when the audit is resumed. Workers look for files under the same paths as here.

    Args:
        source: The spec whose cases will come.
        workers: CPUs of the cluster started here; None takes all.
        timeout: Seconds after which a case is ended and recorded as failed; None for no limit.
    """

    source: SpecSource
    workers: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        """Refuse at once if Ray is not installed."""
        _import_ray()

    def __call__(
        self, cases: Sequence[AnyCase], started: Started = announce_nothing
    ) -> Iterator[Outcome]:
        """Run the cases, yielding outcomes as they come, in any order."""
        ray = _import_ray()
        with self._start_cluster(ray):
            task = ray.remote(_run_task).options(
                num_cpus=1, num_gpus=int(self.source.device.startswith("cuda")), max_retries=1
            )
            folder = str(Path.cwd())
            try:
                running = {
                    task.remote(self.source, case.id, folder, self.timeout): case
                    for case in cases
                    if started(case)
                }
                while running:
                    [ready], _ = ray.wait(list(running))
                    case = running[ready]
                    try:
                        outcome = Outcome.unpack(ray.get(ready), case.target.truth)
                    except ray.exceptions.RayError as error:
                        if not _is_own_fault(ray, error):
                            raise
                        outcome = fail_case(case, f"its worker was lost: {type(error).__name__}")
                    running.pop(ready)
                    yield outcome
            except (ray.exceptions.RayError, ConnectionError) as error:
                raise SeepageError(
                    f"Ray was lost ({type(error).__name__}), and with it the cases at work; what "
                    "is done is stored, and --resume runs the rest"
                ) from error

    @contextmanager
    def _start_cluster(self, ray: ModuleType) -> Iterator[None]:
        if ray.is_initialized():
            yield
            return
        # Workers import what this process can, such as seepage from a source tree.
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = os.pathsep.join(str(Path(folder).absolute()) for folder in given if folder)
        there = "RAY_ADDRESS" in os.environ
        try:
            # Ray lets workers import everything from the folder in which it starts.
            with _safe_path(), chdir(sys.prefix):
                ray.init(
                    num_cpus=None if there else self.workers,
                    include_dashboard=None if there else False,
                    _node_ip_address=None if there else os.environ.get(HOST, "127.0.0.1"),
                    log_to_driver=False,
                    logging_level="ERROR",
                    runtime_env={"env_vars": {"PYTHONPATH": paths}},
                )
        except Exception as error:
            where = f"at {os.environ['RAY_ADDRESS']!r}" if there else "here"
            raise SeepageError(
                f"expected a cluster of Ray {where}, but it does not start or answer "
                f"({summarise_error(error)}); what is done is stored, and --resume runs the rest"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _import_ray() -> ModuleType:
    if "RAY_ADDRESS" not in os.environ and HOST not in os.environ:
        # Read when Ray is imported: the cluster started here listens on the loopback device only.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray: ModuleType = import_extra("ray", "ray", reason="the executor 'ray' needs an extra")
    import_module("ray.exceptions")
    return ray


def _is_own_fault(ray: ModuleType, error: Exception) -> bool:
    """Whether a task failed by itself, not because a machine or the cluster was lost."""
    known = ray.exceptions
    if isinstance(error, known.RayTaskError | known.OutOfMemoryError):
        return True
    if not isinstance(error, known.WorkerCrashedError):
        return False
    # A worker dies with its machine too, which Ray notices later.
    try:
        for _ in range(_NOTICED):
            if not all(node["Alive"] for node in ray.nodes()):
                return False
            time.sleep(1)
    except (known.RayError, ConnectionError):
        return False
    return True


class _TooLong(BaseException):
    """The time of a case is over; no attack may take it for an error of its own."""


@contextmanager
def _limit_time(seconds: float | None) -> Iterator[None]:
    """Raise `_TooLong` after some seconds; end the process if nobody listens."""
    if seconds is None:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    watchdog = threading.Timer(2 * seconds + 10, os._exit, [1])
    watchdog.daemon = True
    watchdog.start()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        watchdog.cancel()
        signal.signal(signal.SIGALRM, before)


def _run_task(source: SpecSource, case: str, folder: str, timeout: float | None) -> bytes:
    """Run one case in a worker."""
    os.chdir(folder)
    cases = _build_cases(source)
    if case not in cases:
        raise UnknownName("case", case, cases, where="in the spec as this worker reads it")
    try:
        with _limit_time(timeout):
            return run_case(cases[case]).pack()
    except _TooLong:
        return fail_case(cases[case], _describe_timeout(timeout or 0)).pack()
