"""The command `seepage audit` and its options.

Like every command, it imports what it needs when it is called, so that `seepage --help` does not
wait for torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from seepage.cli.options import (
    MODEL,
    CapturedForm,
    Defenses,
    Device,
    DeviceOption,
    DryRun,
    Effort,
    EncryptKey,
    NetworkOptions,
    Overwrite,
    Plain,
    Quiet,
    Resume,
    Where,
    Workers,
    make_console,
    use_key,
)

# The groups of options in the help; the others come first.
_GROUPS = {
    "Instead of a spec": "model option data people defense capture truth labels form shape "
    "batch_size effort steps public",
    "How it runs": "device executor workers timeout dry_run plain quiet",
    "An earlier audit in --out": "resume retry_failed overwrite trust",
    "Exit codes for CI": "fail_above fail_if_inconclusive fail_if_worse",
}


class AuditCommand(TyperCommand):
    """Shows its options in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the help."""
        groups = {name: group for group, names in _GROUPS.items() for name in names.split()}
        for option in self.params:
            if isinstance(option, TyperOption):
                option.rich_help_panel = groups.get(option.name or "")
        super().format_help(ctx, formatter)


def audit(
    spec: Annotated[
        Path | None, typer.Argument(help="A spec in TOML; the bundled quickstart by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("seepage-audit"),
    capture: Annotated[
        Path | None,
        typer.Option(
            help="Attack this captured update, or all in this folder, instead of a spec; needs "
            "--model."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"The model that is trained: {MODEL}."),
    ] = None,
    option: NetworkOptions = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Attack --model on people of this data set, e.g. folder:PATH:pixels=28; see "
            "`seepage list data`."
        ),
    ] = None,
    people: Annotated[
        int | None, typer.Option(min=1, help="How many people of --data to attack; 4 by default.")
    ] = None,
    defense: Defenses = None,
    effort: Annotated[
        Effort | None,
        typer.Option(help="How hard to attack --model or --capture; quick by default."),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(help="With --capture: public data like the private data, for rehearsals."),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="The private batch of the capture; used only for scoring."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels the adversary knows, e.g. 3,5; inferred by default.")
    ] = None,
    form: Annotated[
        CapturedForm | None,
        typer.Option(help="What the captured update is, if its file says something else."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Input shape, e.g. 3x32x32; needed only if the capture does not record it."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size; with --capture, only if it does not record it."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of steps in all, instead of that of --effort."),
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
            help="Exit with code 3 if more people than this are identified (identified=0), or if "
            "anybody's score is beyond this value and beats the best guess without an update: "
            "above it for psnr, below it for lpips. Repeatable.",
        ),
    ] = None,
    fail_if_inconclusive: Annotated[
        bool,
        typer.Option(
            "--fail-if-inconclusive",
            help="Exit with code 4 if the attacks were too weak to tell.",
        ),
    ] = False,
    fail_if_worse: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Exit with code 3 if more leaks than in this earlier audit, beyond noise.",
        ),
    ] = None,
    resume: Resume = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume, run failed cases again.")
    ] = False,
    overwrite: Overwrite = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Seconds that a case may take; then it is ended and recorded as failed."
        ),
    ] = None,
    no_truth: Annotated[
        bool,
        typer.Option("--no-truth", help="Store only scores, no private inputs and no guesses."),
    ] = False,
    encrypt_key: EncryptKey = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="With --resume, run code that the spec of somebody else's audit names."
        ),
    ] = False,
    dry_run: DryRun = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Run every attack in a spec and show what leaked.

    Instead of a spec, --model with --data attacks people of a data set, and
    --model with --capture attacks a captured update; both by the strongest
    attack that fits. --defense says which defenses to compare with none; behind
    a capture, the one that the client used.

    Exit codes: 0 done, 1 a case failed or lost its files, 2 bad usage or spec, 3 somebody leaked
    beyond --fail-above or more than before, 4 inconclusive.
    """
    from seepage.audit.choices import Gate
    from seepage.cli.capture_command import CaptureRequest, ModelRequest
    from seepage.cli.run_audit import AuditRequest, run_request
    from seepage.core.errors import InvalidValue

    if capture is not None and model is None:
        raise InvalidValue("--capture needs --model, the model that was trained; give both")
    if data is not None and model is None:
        raise InvalidValue("--data needs --model, the model to attack; give both")
    chosen: dict[str, Any] = {
        "model": model,
        "option": option,
        "defense": defense,
        "batch_size": batch_size,
        "effort": effort and effort.value,
        "steps": steps,
    }
    of_capture: dict[str, Any] = {
        "truth": truth,
        "labels": labels,
        "form": form and form.value,
        "shape": shape,
        "public": public,
    }
    _refuse_extra(chosen if model is None else {}, "--model")
    _refuse_extra(of_capture if capture is None else {}, "--capture")
    _refuse_extra({"people": people} if data is None else {}, "--data")
    if (data is None) == (capture is None) and model is not None:
        raise InvalidValue("expected --model with --data, or --model with --capture")
    given = {name: value for name, value in chosen.items() if value is not None}
    use_key(encrypt_key)
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
        capture=(None if capture is None else CaptureRequest(file=capture, **given, **of_capture)),
        network=None if data is None else ModelRequest(data=data, people=people, **given),
        fail_if_inconclusive=fail_if_inconclusive,
        baseline=fail_if_worse,
        timeout=timeout,
        keep_private=not no_truth,
        trust=trust,
        encrypt_key=encrypt_key,
    )
    raise typer.Exit(run_request(request, make_console()))


def _refuse_extra(options: Mapping[str, object], needed: str) -> None:
    """Raise `InvalidValue` if an option is given without the one that it goes with."""
    from seepage.core.errors import InvalidValue

    for name, value in options.items():
        if value is not None:
            raise InvalidValue(f"--{name.replace('_', '-')} needs {needed}, which is missing")
