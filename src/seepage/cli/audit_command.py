"""The command `seepage audit` and its options.

Only Typer is imported here; what the command needs is imported when it runs.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """Device to run on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


DeviceOption = Annotated[Device, typer.Option(help="Device to train and attack on.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of worker processes; a GPU takes one."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Skip cases that already have a result in --out.")
]
Overwrite = Annotated[bool, typer.Option(help="Replace the audit in --out.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the cases and estimate the time; run nothing.")
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print lines for a log instead of a progress bar.")
]
Quiet = Annotated[bool, typer.Option(help="Show only the result, no progress.")]
NetworkOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An argument of the model, as key=value; repeatable."),
]


class Where(StrEnum):
    """Where cases run."""

    local = "local"
    ray = "ray"


class _CapturedForm(StrEnum):
    """What a captured update is."""

    gradient = "gradient"
    difference = "difference"
    weights_after = "weights_after"


def audit(
    spec: Annotated[
        Path | None, typer.Argument(help="A spec in TOML; the bundled quickstart by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("seepage-audit"),
    capture: Annotated[
        Path | None,
        typer.Option(help="Attack this captured update instead of a spec; needs --model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that was trained: a model name, or package.module:factory."),
    ] = None,
    option: NetworkOptions = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="The private batch of the capture; used only for scoring."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels the adversary knows, e.g. 3,5; inferred by default.")
    ] = None,
    form: Annotated[
        _CapturedForm | None,
        typer.Option(help="Read the captured update as this, whatever its file says."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Input shape, e.g. 3x32x32; needed only if the capture does not record it."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size; needed only if the capture does not record it."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of each search on the capture; 1000 by default."),
    ] = None,
    device: DeviceOption = Device.auto,
    executor: Annotated[
        Where, typer.Option(help="Run cases on this machine, or on a Ray cluster.")
    ] = Where.local,
    workers: Workers = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Exit with code 3 if anybody's data leaks beyond this value: above it for "
            "metrics such as psnr, below it for metrics such as lpips. Repeatable.",
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
    """Run every attack in a spec and show what leaked.

    Exit codes: 0 done, 1 a case failed, 2 bad usage or spec, 3 somebody leaked beyond --fail-above.
    """
    from rich.console import Console

    from seepage.audit.choices import Gate
    from seepage.cli.capture_command import STEPS, CaptureRequest
    from seepage.cli.run_audit import AuditRequest, run_request

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
    raise typer.Exit(run_request(request, Console()))


def _require_capture(capture: Path | None, **given: object) -> None:
    """Refuse options of a capture without one, and a capture without its model."""
    from seepage.core.errors import InvalidValue

    extra = [name for name, value in given.items() if value is not None]
    if capture is None and extra:
        raise InvalidValue(f"--{extra[0].replace('_', '-')} needs --capture, which is missing")
    if capture is not None and given["model"] is None:
        raise InvalidValue("--capture needs --model, the model that was trained; give both")
