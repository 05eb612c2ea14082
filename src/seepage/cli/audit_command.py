"""The command `seepage audit` and its options."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from seepage.audit import Gate
from seepage.cli.capture_command import STEPS, CaptureRequest
from seepage.cli.run_audit import AuditRequest
from seepage.cli.run_audit import audit as run_audit
from seepage.core.errors import InvalidValue


class Device(StrEnum):
    """Where to run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


DeviceOption = Annotated[Device, typer.Option(help="Where to train and attack.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that share the cores; on a card there is one."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Run only what --out has no result of.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what is in --out.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the cases and estimate the time; run nothing.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines for a log, no bar.")]
Quiet = Annotated[bool, typer.Option(help="No progress, only the result.")]
NetworkOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An argument of the network, as key=value; repeatable."),
]


class Where(StrEnum):
    """Who runs the cases."""

    local = "local"
    ray = "ray"


class CapturedForm(StrEnum):
    """What a captured update is."""

    gradient = "gradient"
    difference = "difference"
    weights_after = "weights_after"


def audit(
    spec: Annotated[
        Path | None, typer.Argument(help="A spec in TOML; the bundled quickstart if none is given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for all that is found.")] = Path(
        "seepage-audit"
    ),
    capture: Annotated[
        Path | None,
        typer.Option(help="A captured update to attack instead of a spec; needs --model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The network of the capture: of the zoo, or package.module:factory."),
    ] = None,
    option: NetworkOptions = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="The private batch behind the capture, which scoring alone opens."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels the adversary knows, such as 3,5; else inferred.")
    ] = None,
    form: Annotated[
        CapturedForm | None,
        typer.Option(help="What the captured update is, in spite of what its file says."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Of one captured input, such as 3x32x32, if not in the file.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Inputs behind the capture, if not in the file.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Of each search that attacks the capture; 1000 if not given."),
    ] = None,
    device: DeviceOption = Device.auto,
    executor: Annotated[
        Where, typer.Option(help="Run cases on this machine, or as tasks of a Ray cluster.")
    ] = Where.local,
    workers: Workers = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Exit with 3 if anybody leaks beyond this: above for metrics that rise with "
            "leakage such as psnr, below for those that fall such as lpips. May be repeated.",
        ),
    ] = None,
    resume: Resume = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume, run failed cases again.")
    ] = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Attack every combination a spec names, and show what leaked.

    Exit codes: 0 done, 1 a case failed, 2 bad usage or spec, 3 somebody leaked beyond --fail-above.
    """
    _require_capture(
        capture,
        model=model,
        option=option,
        truth=truth,
        labels=labels,
        form=form,
        shape=shape,
        batch_size=batch_size,
        steps=steps,
    )
    # Networks of the user's own are found beside where the command runs.
    sys.path.insert(0, str(Path.cwd()))
    request = AuditRequest(
        spec=spec,
        out=out,
        device=device.value,
        executor=executor.value,
        workers=workers,
        gates=tuple(map(Gate.parse, fail_above or ())),
        resume=resume,
        retry_failed=retry_failed,
        overwrite=overwrite,
        dry_run=dry_run,
        plain=plain,
        quiet=quiet,
        capture=None
        if capture is None
        else CaptureRequest(
            file=capture,
            model=model or "",
            options=tuple(option or ()),
            truth=truth,
            labels=labels,
            form=None if form is None else form.value,
            shape=shape,
            batch_size=batch_size,
            steps=STEPS if steps is None else steps,
        ),
    )
    raise typer.Exit(run_audit(request, Console()))


def _require_capture(capture: Path | None, **given: object) -> None:
    """Refuse options of a capture without one, and a capture without its network."""
    extra = [name for name, value in given.items() if value is not None]
    if capture is None and extra:
        raise InvalidValue(f"--{extra[0].replace('_', '-')} goes with --capture, which is missing")
    if capture is not None and given["model"] is None:
        raise InvalidValue("--capture needs --model, the network that was trained; give both")
