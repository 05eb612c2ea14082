"""The other commands and their options; each imports what it needs when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seepage.cli.options import (
    MODEL,
    Attacks,
    Defenses,
    Device,
    DeviceOption,
    DryRun,
    EncryptKey,
    Format,
    Kind,
    KnowsLabels,
    NetworkOptions,
    Overwrite,
    Plain,
    Printed,
    PrintedOption,
    Quiet,
    Workers,
    make_console,
    use_key,
)


def membership(
    captures: Annotated[
        list[Path], typer.Argument(help="Captured updates: one, or one for each round.")
    ],
    model: Annotated[str, typer.Option(help=f"The model that was trained: {MODEL}.")],
    candidates: Annotated[
        str, typer.Option(help="Data set of the people to test, e.g. npz:PATH with inputs, labels.")
    ],
    public: Annotated[
        str,
        typer.Option(help="Public data like the private data, to compute p-values with."),
    ],
    option: NetworkOptions = None,
    noise: Annotated[
        float | None,
        typer.Option(min=0.0, help="Standard deviation of Gaussian noise that the client added."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Batch size, if the capture does not record it.")
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The first N candidates are known to have been in the batch, the others not; the "
            "result then says how often the test is right.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the result to this file, for seepage dossier.")
    ] = None,
    form: PrintedOption = Printed.text,
) -> None:
    """Test who was in the batch behind captured updates: a p-value for each candidate."""
    from seepage.cli.membership_command import MembershipRequest, answer_membership

    request = MembershipRequest(
        captures=captures,
        model=model,
        candidates=candidates,
        public=public,
        option=option or [],
        noise=noise,
        batch_size=batch_size,
        members=members,
        out=out,
    )
    answer_membership(request, as_json=form is Printed.json, console=make_console())


def inspect(
    models: Annotated[list[str], typer.Argument(help=f"Models, each {MODEL}.")],
    option: NetworkOptions = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Input shape, e.g. 3x32x32 (the default), 1x140, or 12 for rows."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(help="For texts: length and size of the vocabulary, e.g. 128x30522."),
    ] = None,
    numerical: Annotated[
        bool, typer.Option("--numerical", help="Compute ranks instead of counting; takes minutes.")
    ] = False,
    form: PrintedOption = Printed.text,
) -> None:
    """Say what an architecture gives away before anything is shared: inputs, or words."""
    from seepage.cli.model_commands import inspect_models

    inspect_models(
        models,
        options=option or [],
        shape=shape,
        tokens=tokens,
        numerical=numerical,
        as_json=form is Printed.json,
        console=make_console(),
    )


def vet(
    model: Annotated[str, typer.Argument(help=f"The model: {MODEL}.")],
    option: NetworkOptions = None,
    weights: Annotated[
        Path | None, typer.Option(help="The received weights: .safetensors or .pt.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Your own data to run the model on; see `seepage list data`."),
    ] = None,
    people: Annotated[int, typer.Option(min=1, help="Number of examples to use.")] = 16,
    shape: Annotated[
        str | None,
        typer.Option(help="Input shape, e.g. 3x32x32; that of --data if not given."),
    ] = None,
    form: PrintedOption = Printed.text,
) -> None:
    """Check a received model for signs that the server manipulated it to read the update.

    Exit codes: 0 clean, 2 bad usage, 3 suspicious, 4 malicious.
    """
    from seepage.cli.model_commands import vet_model

    code = vet_model(
        model,
        options=option or [],
        weights=weights,
        shape=shape,
        data=data,
        people=people,
        as_json=form is Printed.json,
        console=make_console(),
    )
    raise typer.Exit(code)


def sweep(
    noise: Annotated[
        str | None, typer.Option(help="Standard deviations of Gaussian noise, e.g. 0,0.01,0.1.")
    ] = None,
    epsilon: Annotated[
        str | None, typer.Option(help="DP-SGD: epsilon of one update at delta 1e-5, e.g. 1,4,16.")
    ] = None,
    prune: Annotated[str | None, typer.Option(help="Shares that Prune zeroes, e.g. 0,0.9.")] = None,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", help="People per update, e.g. 1,4,16.")
    ] = None,
    model: Annotated[str, typer.Option(help=f"The model: {MODEL}.")] = "lenet",
    option: NetworkOptions = None,
    data: Annotated[str, typer.Option(help="A data set; see `seepage list data`.")] = "digits",
    people: Annotated[int, typer.Option(min=1, help="How many people to attack.")] = 4,
    batch_size: Annotated[int, typer.Option(min=1, help="People per update, if not swept.")] = 4,
    attack: Attacks = None,
    knows_labels: KnowsLabels = False,
    train_steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Steps of training for the accuracy, by default 20 passes (300 to 1000 steps); 0 "
            "trains nothing.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("seepage-sweep"),
    device: DeviceOption = Device.auto,
    workers: Workers = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Measure leakage, accuracy and epsilon at several values of one setting; draw the curve.

    Exit codes: 0 done, 1 a case failed, 2 bad usage.
    """
    from seepage.cli.new_command import NewSpec
    from seepage.cli.run_audit import AuditRequest
    from seepage.cli.sweep_command import KNOBS, Sweep, read_values, run_sweep
    from seepage.core.errors import InvalidValue

    given = dict(zip(KNOBS, (noise, epsilon, prune, batch_sizes), strict=True))
    chosen = [(knob, written) for knob, written in given.items() if written is not None]
    if len(chosen) != 1:
        raise InvalidValue(
            "expected one of --noise, --epsilon, --prune and --batch-sizes, got "
            + (f"{len(chosen)}; sweep one at a time" if chosen else "none")
        )
    [(knob, written)] = chosen
    base = NewSpec(
        data=data,
        model=model,
        options=tuple(option or ()),
        people=people,
        batch_sizes=(batch_size,),
        attacks=tuple(attack or ["auto:effort=quick"]),
        knows_labels=knows_labels,
    )
    request = AuditRequest(
        out=out,
        device=device.value,
        workers=workers,
        overwrite=overwrite,
        dry_run=dry_run,
        plain=plain,
        quiet=quiet,
    )
    swept = Sweep(knob=knob, values=read_values(knob, written), base=base, train_steps=train_steps)
    raise typer.Exit(run_sweep(swept, request, make_console()))


def report(
    directories: Annotated[
        list[Path], typer.Argument(help="The directory of an audit, or two to compare.")
    ],
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.html,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file; by default report.* (or comparison.*) in the last directory."
        ),
    ] = None,
    utility: Annotated[
        Path | None,
        typer.Option(help="JSON file with the utility of each defense, plotted against leakage."),
    ] = None,
    encrypt_key: EncryptKey = None,
) -> None:
    """Write the report of an audit, or compare two audits.

    The audit may still be running or may have been interrupted: the report says what is missing.
    """
    from seepage.cli.report_command import write_report

    use_key(encrypt_key)
    write_report(directories, form=form.value, out=out, utility=utility, console=make_console())


def dossier(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Directories of audits, and files of `seepage membership --out` or save_evidence."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("seepage-dossier"),
    title: Annotated[
        str | None, typer.Option(help="What was tested; by default the title of the first audit.")
    ] = None,
    author: Annotated[str, typer.Option(help="Who is responsible for it.")] = "",
    against: Annotated[
        Path | None, typer.Option(help="An earlier dossier.json to compare with.")
    ] = None,
) -> None:
    """Write one document for a regulator: every test and its result, or that it was not run."""
    from seepage.cli.report_command import write_dossier

    write_dossier(
        sources, out=out, title=title, author=author, against=against, console=make_console()
    )


def dashboard(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(help="Directories of audits, or directories above them; here by default."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output file; else dashboard.html in the first directory.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", hidden=True)] = False,
    port: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Show many audits over time on one page: which version of a model leaks more."""
    from seepage.cli.dashboard_command import refuse_server, write_dashboard

    if serve or port is not None:
        refuse_server()
    write_dashboard(directories or [Path()], out, make_console())


def verify(
    directory: Annotated[
        Path, typer.Argument(help="The directory of an audit, or the JSON of a dossier.")
    ],
    encrypt_key: EncryptKey = None,
) -> None:
    """Check that an audit or a dossier was not altered or damaged: checksums, records and files.

    Exit codes: 0 whole, 1 something is missing or was altered, 2 no audit.
    """
    from seepage.cli.report_command import verify_audit

    use_key(encrypt_key)
    raise typer.Exit(verify_audit(directory, make_console()))


def purge(
    directory: Annotated[Path, typer.Argument(help="The directory of an audit.")],
) -> None:
    """Remove the private inputs and the guesses of an audit, and keep its scores."""
    from seepage.cli.report_command import purge_audit

    purge_audit(directory, make_console())


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[
        str | None, typer.Argument(help="Show one of them: its options, what it needs, its paper.")
    ] = None,
) -> None:
    """List the names that a spec can use, or show the options of one of them."""
    from seepage.cli.help_commands import describe_part, list_parts

    if name is None:
        list_parts(kind.value, make_console())
    else:
        describe_part(kind.value, name, make_console())


def new(
    out: Annotated[Path, typer.Argument(help="The spec to write.")] = Path("audit.toml"),
    data: Annotated[
        str | None, typer.Option(help="Data set to attack; see `seepage list data`.")
    ] = None,
    model: Annotated[str | None, typer.Option(help=f"Model to train: {MODEL}.")] = None,
    option: NetworkOptions = None,
    people: Annotated[int, typer.Option(min=1, help="How many people to attack.")] = 4,
    batch_size: Annotated[
        list[int] | None, typer.Option(min=1, help="People per update; repeatable.")
    ] = None,
    attack: Attacks = None,
    defense: Defenses = None,
    local_steps: Annotated[
        int | None, typer.Option(min=1, help="Local steps that each client takes (FedAvg).")
    ] = None,
    knows_labels: KnowsLabels = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the file.")] = False,
) -> None:
    """Write a commented spec from these options; on a terminal, ask for what is missing."""
    from seepage.cli.new_command import NewSpec, ask_missing, write_spec

    console = make_console()
    asked = ask_missing({"data": data, "model": model}, console)
    wanted = NewSpec(
        data=asked["data"],
        model=asked["model"],
        options=tuple(option or ()),
        people=people,
        batch_sizes=tuple(batch_size or [1]),
        attacks=tuple(attack or ["auto:effort=quick"]),
        defenses=tuple(defense or ()),
        local_steps=local_steps,
        knows_labels=knows_labels,
    )
    write_spec(wanted, out, overwrite=overwrite, console=console)


def doctor() -> None:
    """Say what is installed, which optional parts can be used, and what they are for.

    Exit codes: 0 an audit works here, 1 it does not.
    """
    from seepage.cli.help_commands import diagnose

    raise typer.Exit(diagnose(make_console()))
