"""Run an audit from Python: a spec or cases in, an `AuditResult` out."""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from seepage._options import ProgressListener, RunOptions, called_with
from seepage.audit._audit_result import AuditResult, load_audit
from seepage.audit._choices import require_measured
from seepage.audit._claims import InUse
from seepage.audit._folder import CHECKPOINTS, SPEC, require_plain
from seepage.audit._plan import PLAN, Plan, find_imports
from seepage.audit._ray import RayCluster
from seepage.audit._record import Outcome
from seepage.audit._run_case import AnyCase, Executor, fail_case, serial, side_by_side
from seepage.audit._spec import Spec, build_spec, read_timeout
from seepage.audit._spec_text import SpecSource, write_toml
from seepage.audit._store import AuditStore
from seepage.audit._workers import TRIES, Pool
from seepage.core._checkpoint import checkpointing
from seepage.core._whole_file import read_plain
from seepage.core.errors import DataNotFound, InvalidValue

# Seconds between looks at what other processes do, and to wait for one that begins an audit.
_PAUSE, _PATIENCE = 0.5, 10.0


@called_with(RunOptions)
def run(options: RunOptions) -> AuditResult:
    """Run every case that has no result yet, and return all results.

    This is `seepage audit` without the pages, which `seepage report DIR` writes. Arguments are the
    fields of `RunOptions`: the spec, the folder, and the others by name.

    Example:
        >>> import seepage as sp
        >>> result = sp.audit.run(
        ...     {
        ...         "scenario": {
        ...             "data": {"name": "photos", "people": 1},
        ...             "models": {"name": "mlp", "hidden": [8]},
        ...             "threats": {"knows_labels": True},
        ...             "attacks": {"name": "analytic_fc"},
        ...         }
        ...     },
        ...     device="cpu",
        ... )
        >>> result.records[0].scores["psnr"][0] > 60
        True

    Raises:
        SeepageError: The spec is wrong, `out` holds something else, or a gate cannot be checked.
    """
    if options.out is not None:
        return _run(options, Path(options.out))
    temporary = tempfile.mkdtemp(prefix="seepage-")
    try:
        found = _run(options, Path(temporary))
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    weakref.finalize(found, shutil.rmtree, temporary, ignore_errors=True)
    return found


def _run(options: RunOptions, folder: Path) -> AuditResult:
    timeout, alone = read_timeout(options.timeout), None
    spec = _build_given(options, folder)
    if spec is None:
        cases, title, text = _require_cases(options.spec_or_cases), "Audit", options.notes
        device = str(cases[0].task.reference.device) if cases else "cpu"
    else:
        require_measured(options.gates, spec)
        cases, title, text, device = spec.cases, spec.title, spec.source.text, spec.source.device
        timeout = timeout or spec.timeout
        alone = Pool(spec.source, 1, folder / CHECKPOINTS, timeout)
    executor = _choose_executor(options, spec, folder, timeout)

    def begin() -> AuditStore:
        return AuditStore.create(
            folder,
            title=options.title or title,
            spec=text,
            environment=environment(device),
            cases=cases,
            overwrite=options.overwrite,
            keep_private=options.keep_private,
        )

    def resume() -> AuditStore:
        return AuditStore.resume(
            folder,
            cases=cases,
            retry_failed=options.retry_failed,
            keep_private=options.keep_private,
            extend=text if options.extend else None,
        )

    begun = options.resume and (folder / PLAN).is_file()
    try:
        store = resume() if begun else begin()
    except InUse:
        # Of processes that were started together, one begins and the others join it.
        if begun or not (options.resume and _wait_for_plan(folder)):
            raise
        store = resume()
    with store:
        _run_missing(store, cases, executor, alone, options.progress or ProgressListener())
    return load_audit(folder)


def read_source(
    path: Path | None, out: Path, *, resume: bool, device: str, trust: bool = False
) -> SpecSource:
    """Read a spec; without a path, that of the audit to resume, or the bundled quickstart.

    Raises:
        InvalidValue: If the spec of a stranger's audit would import something, unless `trust`.
    """
    if path is None and resume:
        if not (out / PLAN).is_file():
            raise DataNotFound(
                f"no audit in {str(out)!r} to go on with; name its spec to begin one, or check "
                "--out"
            )
        require_plain(out)
        plan = Plan.read(out)
        _require_trust(out, plan, trust=trust)
        return SpecSource("spec.toml", plan.spec, device)
    return SpecSource.read(path, device=device)


def _require_trust(out: Path, plan: Plan, *, trust: bool) -> None:
    """Refuse a spec that differs from the one for people to read, or imports a stranger's code."""
    shown = out / SPEC
    if shown.is_file() and read_plain(shown) != plan.spec.encode():
        raise InvalidValue(
            f"{str(shown)!r} differs from the spec with which the audit began; name the spec to "
            "resume with, or remove that file"
        )
    if (named := find_imports(plan.spec)) and not trust and not plan.is_own:
        raise InvalidValue(
            f"the audit in {str(out)!r} was not begun by you, and its spec would import and "
            f"run {', '.join(named)}; read that code, then add --trust"
        )


def pick_device(device: str) -> str:
    """Resolve "auto", and refuse a device that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidValue("no CUDA device is available here; use --device cpu or auto")
    return device


def _build_given(options: RunOptions, out: Path) -> Spec | None:
    """Build the spec; None if cases were given instead."""
    given = options.spec_or_cases
    if isinstance(given, Spec):
        return given
    if not (given is None or isinstance(given, Mapping | Path | str)):
        return None
    device = pick_device(options.device)
    if isinstance(given, Mapping):
        return build_spec(SpecSource("the spec", write_toml(given), device))
    path = None if given is None else Path(given)
    return build_spec(
        read_source(path, out, resume=options.resume, device=device, trust=options.trust)
    )


def _require_cases(given: object) -> tuple[AnyCase, ...]:
    if not isinstance(given, Sequence):
        raise InvalidValue(
            "expected the path of a spec, a spec, a mapping or a list of cases, got "
            f"{type(given).__name__}"
        )
    return tuple(given)


def _choose_executor(
    options: RunOptions, spec: Spec | None, out: Path, timeout: float | None
) -> Executor:
    executor, workers = options.executor, options.workers
    if callable(executor):
        return executor
    if executor not in ("local", "ray"):
        raise InvalidValue(f"expected executor 'local' or 'ray', got {executor!r}")
    count = workers or 1
    if spec is None:
        if executor == "ray" or count > 1 or timeout is not None:
            raise InvalidValue(
                "workers build their cases from a spec, got cases; give a spec, or leave executor, "
                "workers and timeout out"
            )
        return serial
    if executor == "ray":
        return RayCluster(spec.source, workers, timeout)
    on_gpu = spec.source.device.startswith("cuda")
    if on_gpu and count > 1:
        raise InvalidValue("one process drives a GPU, got --workers; leave it out, or use ray")
    if count > 1 or timeout is not None:
        Pool.require_allowed()
        return Pool(spec.source, count, out / CHECKPOINTS, timeout)
    return side_by_side if on_gpu else serial


def _wait_for_plan(folder: Path) -> bool:
    """Wait a moment for the plan that another process is writing; False if none comes."""
    ends = time.monotonic() + _PATIENCE
    while not (folder / PLAN).is_file() and time.monotonic() < ends:
        time.sleep(_PAUSE)
    return (folder / PLAN).is_file()


def _run_missing(
    store: AuditStore,
    cases: Sequence[AnyCase],
    executor: Executor,
    alone: Executor | None,
    progress: ProgressListener,
) -> None:
    """Run what has no result, and wait for what other processes run.

    A case that seems to end the process runs last, and `alone`.
    """
    by_id = {case.id: case for case in cases}
    records = [record for record in store.records() if record.case in by_id]
    done = {record.case for record in records}
    showing = progress.begin(total=len(by_id), done=records, mended=store.mended)
    # A cluster runs cases in other processes, which they cannot leave.
    counts = not isinstance(executor, RayCluster)
    elsewhere: set[str] = set()

    def started(case: AnyCase) -> bool:
        if store.claim(case, counts=counts):
            progress.started(case)
            return True
        elsewhere.add(case.id)
        return False

    def finish(outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            store.add(by_id[outcome.record.case], outcome)
            done.add(outcome.record.case)
            progress.finished(outcome.record)
            if outcome.shown:
                progress.failed(outcome.record, outcome.shown)

    def run_missing(missing: Sequence[AnyCase]) -> None:
        begun = {case for case, times in store.tries().items() if times >= TRIES}
        suspects = [case for case in missing if case.id in begun]
        finish(executor([case for case in missing if case.id not in begun], started))
        if alone is None:
            why = f"it ended the process {TRIES} times"
            finish(fail_case(case, why) for case in suspects if started(case))
        elif suspects:
            finish(alone(suspects, started))

    with checkpointing(store.path / CHECKPOINTS, inside=True), showing:
        run_missing([case for case in by_id.values() if case.id not in done])
        while elsewhere - done:
            for record in store.records():
                if record.case in elsewhere - done:
                    done.add(record.case)
                    progress.finished(record)
            if left := [by_id[case] for case in sorted(elsewhere - done)]:
                time.sleep(_PAUSE)
                elsewhere.clear()
                run_missing(left)


PACKAGES = ("seepage", "torch", "numpy", "scipy", "pillow", "safetensors")


def environment(device: str) -> dict[str, str | dict[str, str]]:
    """Versions, platform, device and the time now, as plain data."""
    on_gpu = device.startswith("cuda")
    processor = torch.cuda.get_device_name() if on_gpu else platform.processor()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "processor": processor or platform.machine(),
        "packages": {name: _find_version(name) for name in PACKAGES},
        "begun": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        # Seepage itself may run from its source tree.
        return "not installed"
