"""Run cases in worker processes, any of which may die, or as Ray tasks."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType

import torch

from seepage.audit.record import Outcome
from seepage.audit.run_case import AnyCase, Started, announce_nothing, fail_case, run_case
from seepage.audit.spec_text import SpecSource
from seepage.core.checkpoint import checkpointing
from seepage.core.errors import InvalidValue, MissingExtra, UnknownName
from seepage.core.progress import listen, report

# The first byte of a message says what follows.
PROGRESS, OUTCOME = b"p", b"o"
TRIES = 2


@lru_cache(maxsize=1)
def _build_cases(source: SpecSource) -> dict[str, AnyCase]:
    """Build the cases of a spec, once per worker process."""
    from seepage.audit.spec import build_spec

    return {case.id: case for case in build_spec(source).cases}


def work(link: Connection, source: SpecSource, *, threads: int, checkpoints: Path) -> None:
    """Run the case of every id that is sent, until the other end of the pipe closes."""
    # These reach all processes; the parent decides what they mean.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    cases = _build_cases(source)

    def send_progress(step: int, steps: int, objective: float) -> None:
        link.send_bytes(PROGRESS + json.dumps([step, steps, objective]).encode())

    with checkpointing(checkpoints), listen(send_progress):
        while True:
            try:
                case = cases[link.recv_bytes().decode()]
                link.send_bytes(OUTCOME + run_case(case).pack())
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

    A worker that dies takes one case with it; that case is tried once more, then recorded as
    failed. Each worker computes with its share of this process's threads.

    Args:
        source: The spec whose cases will come.
        workers: How many processes.
        checkpoints: Folder in which long attacks save their state.
    """

    source: SpecSource
    workers: int
    checkpoints: Path

    def __post_init__(self) -> None:
        """Refuse less than one worker."""
        if self.workers < 1:
            raise InvalidValue(f"expected workers >= 1, got {self.workers!r}")

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
                    started(case)
                    idle.send(case)
                for worker, case in _wait_for_messages(crew):
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
        finally:
            for worker in crew:
                worker.process.kill()
                worker.end()

    def _find_idle(self, crew: list[_Worker]) -> _Worker | None:
        """Find a worker without a case, or start one if there may be more."""
        for worker in crew:
            if worker.case is None:
                return worker
        if len(crew) == self.workers:
            return None
        crew.append(self._start_worker())
        return crew[-1]

    def _start_worker(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        threads = max(1, torch.get_num_threads() // self.workers)
        process = context.Process(
            target=work,
            args=(theirs, self.source),
            kwargs={"threads": threads, "checkpoints": self.checkpoints},
            daemon=True,
        )
        process.start()
        # If we held that end too, we would not notice when the worker dies.
        theirs.close()
        return _Worker(process, ours)


def _wait_for_messages(crew: Sequence[_Worker]) -> list[tuple[_Worker, AnyCase]]:
    """Wait until busy workers have sent something or died, and list them with their cases."""
    busy = {id(worker.link): (worker, worker.case) for worker in crew if worker.case}
    ready = wait([worker.link for worker, _ in busy.values()])
    return [busy[id(link)] for link in ready]


class _Worker:
    """A process, the pipe to it, and the case it has in hand."""

    def __init__(self, process: SpawnProcess, link: Connection) -> None:
        self.process = process
        self.link = link
        self.case: AnyCase | None = None

    def send(self, case: AnyCase) -> None:
        """Send a case; a worker that has died is noticed in `receive`."""
        self.case = case
        with suppress(BrokenPipeError):
            self.link.send_bytes(case.id.encode())

    def receive(self) -> Outcome | None:
        """Return an outcome, or report progress and return None."""
        message = self.link.recv_bytes()
        if message[:1] != OUTCOME:
            report(*json.loads(message[1:]))
            return None
        assert self.case is not None
        outcome = Outcome.unpack(message[1:], self.case.target.truth)
        self.case = None
        return outcome

    def end(self) -> int | None:
        """Wait for a process that died or was killed, and return its exit code."""
        self.link.close()
        self.process.join()
        return self.process.exitcode


@dataclass(frozen=True)
class RayCluster:
    """Runs cases as tasks of Ray, each with one CPU, and one GPU if the spec runs on CUDA.

    A running cluster is used if `RAY_ADDRESS` names one; else one is started here for as long as
    the audit runs. Ray runs a task whose worker died once more; then the case is recorded as
    failed. Workers look for the files that a spec names under the same paths as here.

    Args:
        source: The spec whose cases will come.
        workers: CPUs of the cluster started here; None takes all.
    """

    source: SpecSource
    workers: int | None = None

    def __post_init__(self) -> None:
        """Refuse at once if Ray is not installed."""
        _import_ray()

    def __call__(
        self, cases: Sequence[AnyCase], started: Started = announce_nothing
    ) -> Iterator[Outcome]:
        """Run the cases, yielding outcomes as they come, in any order."""
        del started  # Ray does not say when a task begins.
        ray = _import_ray()
        with self._start_cluster(ray):
            task = ray.remote(_run_task).options(
                num_cpus=1, num_gpus=int(self.source.device.startswith("cuda")), max_retries=1
            )
            folder = str(Path.cwd())
            running = {task.remote(self.source, case.id, folder): case for case in cases}
            while running:
                [ready], _ = ray.wait(list(running))
                case = running.pop(ready)
                try:
                    outcome = Outcome.unpack(ray.get(ready), case.target.truth)
                except ray.exceptions.RayError as error:
                    outcome = fail_case(case, f"its worker was lost: {type(error).__name__}")
                yield outcome

    @contextmanager
    def _start_cluster(self, ray: ModuleType) -> Iterator[None]:
        if ray.is_initialized():
            yield
            return
        # Workers import what this process can: seepage from a source tree, the user's networks.
        paths = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
        there = "RAY_ADDRESS" in os.environ
        ray.init(
            num_cpus=None if there else self.workers,
            include_dashboard=None if there else False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )
        try:
            yield
        finally:
            ray.shutdown()


def _import_ray() -> ModuleType:
    try:
        # An import statement would have another type where the extra is not installed.
        ray = import_module("ray")
        import_module("ray.exceptions")
    except ImportError as error:
        raise MissingExtra(
            "the executor 'ray' needs an extra: pip install 'seepage[ray]'"
        ) from error
    return ray


def _run_task(source: SpecSource, case: str, folder: str) -> bytes:
    """Run one case in a worker."""
    os.chdir(folder)
    cases = _build_cases(source)
    if case not in cases:
        raise UnknownName("case", case, cases, where="in the spec as this worker reads it")
    return run_case(cases[case]).pack()
