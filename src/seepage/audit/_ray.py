"""Run cases as tasks of Ray."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType

from seepage.audit._record import Outcome
from seepage.audit._run_case import AnyCase, Started, announce_nothing, fail_case, run_case
from seepage.audit._spec_text import SpecSource
from seepage.audit._workers import build_cases, describe_timeout, safe_path
from seepage.core.errors import SeepageError, UnknownName, import_extra, summarise_error

# The address on which a cluster that is started here listens.
HOST = "SEEPAGE_RAY_HOST"
# Seconds after which Ray knows that a machine is lost.
_NOTICED = 20


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
            with safe_path(), chdir(sys.prefix):
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
    cases = build_cases(source)
    if case not in cases:
        raise UnknownName("case", case, cases, where="in the spec as this worker reads it")
    try:
        with _limit_time(timeout):
            return run_case(cases[case]).pack()
    except _TooLong:
        return fail_case(cases[case], describe_timeout(timeout or 0)).pack()
