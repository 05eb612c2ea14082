"""`seepage audit`: run a spec and show what leaked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from seepage.audit.audit_result import AuditResult, load_audit
from seepage.audit.choices import Breach, Gate
from seepage.audit.database import DATABASE
from seepage.audit.grid import estimate
from seepage.audit.record import Record
from seepage.audit.run_spec import find_breaches, pick_device, read_source, require_measured, run
from seepage.audit.spec import Spec, build_spec
from seepage.audit.spec_text import SpecSource
from seepage.audit.store import PAGE, SHEET
from seepage.cli.capture_command import CaptureRequest, capture_spec
from seepage.cli.display import AuditProgress, duration
from seepage.cli.report_command import save_page, say_alarms
from seepage.core.errors import InvalidValue, UnreadableFile
from seepage.report import (
    attempts,
    audit_verdict,
    bound_table,
    defense_words,
    headrooms,
    leak_table,
    save_contact_sheet,
    silences,
    summarise,
    unscored,
)
from seepage.report.words import count_noun

SHOWN = 10


def _name_leaks(gates: Sequence[Gate], records: Sequence[Record], console: Console) -> bool:
    """Print who leaked through which attack, and return whether anybody did."""
    found = find_breaches(gates, records)
    # Seeds with the same result are printed once.
    sentences = list(dict.fromkeys(map(_sentence, found)))
    for sentence in sentences[:SHOWN]:
        console.print(sentence, style="bold red", markup=False, soft_wrap=True)
    if len(sentences) > SHOWN:
        console.print(f"and {len(sentences) - SHOWN} more leaks", style="bold red")
    return bool(found)


def _sentence(leak: Breach) -> str:
    record, gate = leak.record, leak.gate
    return (
        f"leaked: {record.data} #{leak.person} through {record.attack} on {record.model} behind "
        f"{defense_words(record.defense)}, {gate.metric} {leak.value:.4g} "
        f"(gate {gate.threshold:g})"
    )


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """The options of `seepage audit`.

    Args:
        spec: The file; None takes the bundled quickstart, or the spec of a resumed audit.
        out: The directory.
        device: Where the attacks run.
        executor: "local" or "ray".
        workers: Processes; None takes one, or what a cluster has.
        gates: What must not leak.
        resume: Go on with the audit in `out`, if there is one.
        retry_failed: Run the cases again that gave no result.
        overwrite: Replace the audit in `out`.
        dry_run: Run nothing; say what would run and for how long.
        plain: Lines for a log instead of a bar.
        quiet: Only the result.
        command: What goes on with it after an interrupt; `seepage audit ... --resume` if None.
        capture: A captured update instead of a spec.
    """

    spec: Path | None
    out: Path
    device: str
    executor: str
    workers: int | None
    gates: tuple[Gate, ...]
    resume: bool
    retry_failed: bool
    overwrite: bool
    dry_run: bool
    plain: bool
    quiet: bool
    command: str | None = None
    capture: CaptureRequest | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.resume and self.overwrite:
            raise InvalidValue("expected --resume or --overwrite, got both; choose one")
        if self.spec is not None and self.capture is not None:
            raise InvalidValue("expected a spec or --capture, got both; leave one out")
        if self.retry_failed and not self.resume:
            raise InvalidValue("--retry-failed goes with --resume, which is not given")

    @property
    def again(self) -> str:
        """The command that goes on with what was interrupted."""
        spec = f" {self.spec}" if self.spec else ""
        return self.command or f"seepage audit{spec} --out {self.out} --resume"

    @property
    def resumes(self) -> bool:
        """Whether there is an audit to go on with."""
        return self.resume and (self.out / DATABASE).is_file()


DONE, CASE_FAILED, BAD_USAGE, LEAKED, INTERRUPTED = 0, 1, 2, 3, 130


def run_request(request: AuditRequest, console: Console) -> int:
    """Run every case of a spec that has no result yet; the exit code tells how it went."""
    spec = build_spec(_source(request, console))
    require_measured(request.gates, spec)
    if request.dry_run:
        return show_plan(request, spec, console)
    found = perform(request, spec, console)
    _show(found, console)
    if _name_leaks(request.gates, found.records, console):
        return LEAKED
    every = (*found.records, *found.bounds)
    return CASE_FAILED if any(record.error for record in every) else DONE


def perform(request: AuditRequest, spec: Spec, console: Console) -> AuditResult:
    """Run every case that has no result yet, show the progress, and write the pages."""
    _announce(spec, console)
    shown = AuditProgress(console, quiet=request.quiet, plain=request.plain)
    try:
        found = run(
            spec,
            request.out,
            executor="ray" if request.executor == "ray" else "local",
            workers=request.workers,
            resume=request.resume,
            retry_failed=request.retry_failed,
            overwrite=request.overwrite,
            gates=request.gates,
            progress=shown,
        )
    except KeyboardInterrupt:
        if shown.has_begun:
            begun = load_audit(request.out)
            _draw(begun)
            done = len(begun.records) + len(begun.bounds)
            _say_how_to_resume(request, done, len(spec.cases), console)
        raise
    _draw(found)
    return found


def _announce(spec: Spec, console: Console) -> None:
    title, device = escape(spec.title), spec.source.device
    console.print(f"[bold]{title}[/bold]: {count_noun(len(spec.cases), 'case')} on {device}")


def _source(request: AuditRequest, console: Console) -> SpecSource:
    device = pick_device(request.device)
    if request.capture is not None and not request.resumes:
        return capture_spec(request.capture, device=device, console=console)
    return read_source(request.spec, request.out, resume=request.resume, device=device)


def show_plan(request: AuditRequest, spec: Spec, console: Console) -> int:
    """List what would run and estimate how long it would take."""
    _announce(spec, console)
    begun = load_audit(request.out) if request.resumes else None
    records = () if begun is None else (*begun.records, *begun.bounds)
    done = {record.case for record in records}
    missing = [case for case in spec.cases if case.id not in done]
    for number, case in enumerate(missing, 1):
        console.print(
            f"{number:4} {case.description}", markup=False, highlight=False, soft_wrap=True
        )
    seconds = estimate(missing, records) / (request.workers or 1)
    console.print(
        f"{count_noun(len(missing), 'case')} to run, about {duration(seconds)}: an estimate from a "
        "few steps of every attack and bound on every network, or from what is recorded",
        soft_wrap=True,
    )
    return DONE


def _draw(found: AuditResult) -> None:
    sheet = found.path / SHEET
    try:
        save_contact_sheet(list(found.outcomes()), sheet)
    except OSError as error:
        raise UnreadableFile(
            f"cannot draw {str(sheet)!r}: {error.strerror or error}; the records are stored"
        ) from error
    save_page(found)


def _say_how_to_resume(request: AuditRequest, done: int, total: int, console: Console) -> None:
    what = f"after {done} of {total} cases; they are in {request.out}"
    console.print(
        f"interrupted {what if done else f'before the first of {total} cases was done'}\n"
        f"to go on: {request.again}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _show(found: AuditResult, console: Console) -> None:
    console.print(leak_table(summarise(found.records), width=console.width))
    if unscored(found.records):
        judged = audit_verdict(found)
        for sentence in (f"{judged.headline}.", *judged.details):
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    if found.bounds:
        told = headrooms(attempts(found.records), found.bounds)
        console.print(bound_table(told))
        for sentence in silences(told):
            console.print(sentence, markup=False, highlight=False)
        say_alarms(audit_verdict(found), console)
    every = (*found.records, *found.bounds)
    reasons = [f"failed: {record.error}" for record in every if record.error]
    damaged = [f"truncated: {path}; --resume makes it anew" for path in found.damaged]
    for line in dict.fromkeys([*reasons, *damaged]):
        console.print(line, style="yellow", markup=False)
    out = found.path
    kept = {"report": out / PAGE, "pictures": out / SHEET, "records": out / DATABASE}
    written = "   ".join(f"{what}: {path}" for what, path in kept.items() if path.exists())
    console.print(written, markup=False, soft_wrap=True)
