"""Run cases as Ray tasks, on one machine or many."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from seepage.audit.record import Outcome
from seepage.audit.run_case import AnyCase, Started, announce_nothing, fail_case, run_case
from seepage.audit.spec_text import SpecSource
from seepage.core.errors import MissingExtra, UnknownName


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
            task = ray.remote(_run).options(
                num_cpus=1, num_gpus=int(self.source.device.startswith("cuda")), max_retries=1
            )
            folder = str(Path.cwd())
            running = {task.remote(self.source, case.id, folder): case for case in cases}
            while running:
                [ready], _ = ray.wait(list(running))
                case = running.pop(ready)
                try:
                    outcome = Outcome.unpacked(ray.get(ready), case.target.truth)
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


def _run(source: SpecSource, case: str, folder: str) -> bytes:
    """Run one case in a worker."""
    os.chdir(folder)
    cases = _build_cases(source)
    if case not in cases:
        raise UnknownName("case", case, cases, where="in the spec as this worker reads it")
    return run_case(cases[case]).packed()


@lru_cache(maxsize=1)
def _build_cases(source: SpecSource) -> dict[str, AnyCase]:
    """Build the cases, once per worker process."""
    from seepage.audit.spec import build_spec

    return {case.id: case for case in build_spec(source).cases}
