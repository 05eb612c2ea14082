"""`seepage audit`: run a spec, show how it goes, and show what leaked."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from seepage import report
from seepage._options import ProgressListener, RunOptions
from seepage._signals import raise_on_signals
from seepage.audit._audit_result import AuditResult, load_audit
from seepage.audit._choices import IDENTIFIED, Breach, find_breaches, require_measured
from seepage.audit._claims import CASES
from seepage.audit._folder import PAGE, SHEET, case_file
from seepage.audit._grid import estimate
from seepage.audit._plan import PLAN
from seepage.audit._record import Record
from seepage.audit._run_case import AnyCase
from seepage.audit._run_spec import pick_device, read_source, run
from seepage.audit._spec import Spec, build_spec
from seepage.audit._spec_text import SpecSource
from seepage.audit._words import count_noun, write_duration
from seepage.audit.results import Results
from seepage.audit.results._columns import ATTACKED
from seepage.cli._commands import Audit, Shown
from seepage.cli._console import print_line, print_verdict
from seepage.cli._report_command import save_page
from seepage.cli._written_specs import capture_spec, model_spec
from seepage.core._progress import listen, stage
from seepage.core.errors import InvalidValue, UnreadableFile

DONE, CASE_FAILED, LEAKED, INCONCLUSIVE = 0, 1, 3, 4
# At most so many leaks are listed.
_SHOWN = 10
# So many files that are missing are named.
_NAMED = 3
# A log gets a line about a search that takes longer than this.
_SECONDS_PER_LINE = 60.0


class _AuditProgress(ProgressListener):
    """Shows on a console how an audit goes: the case, its objective, the worst leak so far."""

    def __init__(self, console: Console, *, quiet: bool = False, plain: bool = False) -> None:
        self.has_begun = False
        self._console = console
        self._shown = Console(quiet=True) if quiet else console
        self._plain = plain or not self._shown.is_terminal
        self._case, self._total, self._done = "", 0, 0
        self._told = set[str]()

    @contextmanager
    def begin(
        self, *, total: int, done: Sequence[Record], mended: Sequence[Path]
    ) -> Iterator[None]:
        """Say what is done already, and show a bar inside the block."""
        self.has_begun = True
        for path in mended:
            print_line(self._console, f"{path} was damaged and is made anew", style="yellow")
        if done:
            are = count_noun(len(done), "case is", "cases are")
            self._shown.print(f"{are} done, {total - len(done)} to run")
        people = [record for record in done if not record.control_kind]
        self._worst = report.most(amount for one in people for amount in report.amounts(one))
        self._total, self._done, self._printed_at = total, len(done), time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._shown,
            transient=True,
            disable=self._plain,
        )
        self._task = self._bar.add_task("auditing", total=total, completed=len(done), note="")
        with self._bar, listen(self._show_step):
            yield

    def started(self, case: AnyCase) -> None:
        """Show which case begins."""
        self._case = str(case)
        self._bar.update(self._task, description=escape(self._case))

    def finished(self, record: Record) -> None:
        """Count a case; a log gets a line for it."""
        found = report.amounts(record)
        control = f"{record.control_kind} control: " if record.control_kind else ""
        self._worst = self._worst if control else report.most([self._worst, *found])
        self._done += 1
        self._bar.update(self._task, completed=self._done, note=f"worst {self._worst.words()}")
        if self._plain:
            best = (record.error and f"{record.status}: {record.error}") or (
                _describe_bound(record) if record.bound else report.most(found).words()
            )
            people = ", ".join(f"#{person}" for person in record.people)
            self._print_log(
                f"[{self._done}/{self._total}] {control}{record.data} {people} {record.attack} "
                f"behind {report.defense_words(record.defense)}: {best}"
            )

    def failed(self, record: Record, shown: str) -> None:
        """Show what an error says, once, since only its class is stored."""
        if shown not in self._told:
            self._told.add(shown)
            print_line(self._console, f"{record.attack}: {shown}", style="yellow")

    def _show_step(self, step: int, steps: int, objective: float) -> None:
        trying = f"{stage()}: " if stage() else ""
        where = f"{trying}step {step}/{steps}, objective {objective:.3g}"
        self._bar.update(self._task, note=f"{escape(where)}, worst {self._worst.words()}")
        if self._plain and time.monotonic() > self._printed_at + _SECONDS_PER_LINE:
            self._print_log(f"{self._case}: {where}")

    def _print_log(self, text: str) -> None:
        self._printed_at = time.monotonic()
        print_line(self._shown, text)


def _describe_bound(record: Record) -> str:
    [headroom] = report.headrooms([], [record])
    if headroom.odds:
        return report.read_headroom(headroom)
    if not headroom.people:
        return f"says nothing: {'; '.join(headroom.remarks)}"
    return f"at most {report.decibels(max(person.ceiling for person in headroom.people))}"


def run_audit(asked: Audit, console: Console) -> int:
    """Run every case of a spec that has no result yet, and return the exit code."""
    settings = replace(asked.settings, out=asked.out)
    spec = build_spec(_choose_source(asked, console))
    require_measured(settings.gates, spec)
    # Before anything runs: --overwrite may replace it, and a wrong path must not cost an audit.
    before = None if asked.fail_if_worse is None else load_audit(asked.fail_if_worse).records
    if asked.shown.dry_run:
        return show_plan(settings, spec, console)
    found = perform(settings, spec, console, asked.shown, again=shlex.join(asked.resuming()))
    _print_result(found, console)
    if found.records and all(record.error for record in found.records):
        return CASE_FAILED
    leaked = _print_leaks(settings.gates, found.results, console)
    worse = _print_worse(before, found, console)
    if leaked or worse:
        return LEAKED
    if asked.fail_if_inconclusive and _is_inconclusive(found.results):
        print_line(console, "inconclusive: the attacks were too weak to tell", style="bold red")
        return INCONCLUSIVE
    failed = any(record.failed for record in found.every_record)
    lacks = failed or found.damaged or not found.complete
    return CASE_FAILED if lacks else DONE


def _choose_source(asked: Audit, console: Console) -> SpecSource:
    settings, own = asked.settings, asked.own
    device, resumes = pick_device(settings.device), _resumes(settings.resume, asked.out)
    if own.capture is not None and not resumes:
        return capture_spec(own.capture, own, device=device, console=console)
    written = None if own.data is None else model_spec(own, device=device)
    if written is not None and not resumes:
        return written
    found = read_source(
        asked.spec, asked.out, resume=settings.resume, device=device, trust=settings.trust
    )
    if written is not None and written.text != found.text:
        raise InvalidValue(
            f"{str(asked.out)!r} holds an audit of another --model or with other options; give "
            "--resume alone to go on with it, or choose another --out"
        )
    return found


def _resumes(resume: bool, out: Path) -> bool:
    """Whether there is an audit to go on with."""
    return resume and (out / PLAN).is_file()


def perform(
    settings: RunOptions, spec: Spec, console: Console, shown: Shown, *, again: str
) -> AuditResult:
    """Run every case that has no result yet, show the progress, and write the pages.

    Args:
        settings: How it runs, and in which folder.
        spec: What is run.
        console: Where the progress is shown.
        shown: How.
        again: The command that goes on with it after an interrupt.
    """
    _print_title(spec, console)
    progress = _AuditProgress(console, quiet=shown.quiet, plain=shown.plain)
    with raise_on_signals():
        try:
            found = run(**vars(replace(settings, spec_or_cases=spec, progress=progress)))
            _write_pages(found)
        except KeyboardInterrupt:
            if progress.has_begun:
                _print_interrupt(Path(str(settings.out)), len(spec.cases), again, console)
            else:
                print_line(console, "interrupted before the first case began; nothing was lost")
            raise
    return found


def _print_interrupt(out: Path, total: int, again: str, console: Console) -> None:
    """Write the pages of what is done, and print how to go on."""
    begun = load_audit(out)
    done = len(begun.every_record)
    when = f"before the first of {total} cases was done"
    if done:
        when = f"after {done} of {total} cases; they are in {out}"
    print_line(console, f"interrupted {when}\nto go on: {again}")
    _write_pages(begun)


def _print_title(spec: Spec, console: Console) -> None:
    title, device = escape(spec.title), spec.source.device
    console.print(f"[bold]{title}[/bold]: {count_noun(len(spec.cases), 'case')} on {device}")


def _write_pages(found: AuditResult) -> None:
    """Write the contact sheet and the report into the directory of an audit."""
    sheet = found.path / SHEET
    try:
        report.save_contact_sheet(list(found.outcomes()), sheet)
    except OSError as error:
        raise UnreadableFile(
            f"cannot draw {str(sheet)!r}: {error.strerror or error}; the records are stored"
        ) from error
    save_page(found)


def show_plan(settings: RunOptions, spec: Spec, console: Console) -> int:
    """List what would run and estimate how long it would take."""
    _print_title(spec, console)
    out = Path(str(settings.out))
    records = load_audit(out).every_record if _resumes(settings.resume, out) else ()
    done = {record.case for record in records}
    missing = [case for case in spec.cases if case.id not in done]
    seconds = estimate(missing, records)
    print_line(
        console,
        f"{count_noun(len(missing), 'case')} to run, about "
        f"{write_duration(sum(seconds) / (settings.workers or 1))}: an estimate from a few steps "
        "of every attack and bound on every network, or from what is recorded",
    )
    for number, (case, price) in enumerate(zip(missing, seconds, strict=True), 1):
        # Rounded up, cases of a moment each would add up to more than all of them.
        takes = write_duration(price) if price >= 0.5 else "< 1 s"
        print_line(console, f"{number:4} {takes:>9}  {case.description}")
    return DONE


def _print_result(found: AuditResult, console: Console) -> None:
    console.print(report.leak_table(report.summarise(found.results), width=console.width))
    print_verdict(console, report.audit_verdict(found))
    if found.bounds:
        told = report.headrooms(found.results, found.bounds)
        if any(headroom.informative for headroom in told):
            console.print(report.bound_table(told))
        for sentence in report.explain_silence(told):
            print_line(console, sentence)
    for sentence in report.inapplicable(found.every_record):
        print_line(console, sentence, style="dim")
    reasons = [f"failed: {record.error}" for record in found.every_record if record.failed]
    for line in dict.fromkeys([*reasons, *_tell_damaged(found)]):
        print_line(console, line, style="yellow")
    out = found.path
    kept = {"report": out / PAGE, "pictures": out / SHEET, "records": out / CASES}
    print_line(
        console, "   ".join(f"{what}: {path}" for what, path in kept.items() if path.exists())
    )


def _tell_damaged(found: AuditResult) -> list[str]:
    """One sentence on files that were removed or altered since they were written, if any."""
    done = {record.case for record in found.every_record}
    gone = [case_file(found.path, case.id) for case in found.planned if case.id not in done]
    lost = list(dict.fromkeys((*gone, *found.damaged)))
    if not lost:
        return []
    more = len(lost) - _NAMED
    named = ", ".join(path.name for path in lost[:_NAMED])
    return [
        f"missing or altered since they were written: {count_noun(len(lost), 'file')}, "
        f"{named}{f' and {more} more' * (more > 0)}; --resume makes them anew"
    ]


def _print_leaks(gates: Sequence[str], records: Results, console: Console) -> bool:
    """Print who leaked through which attack, and return whether anybody did."""
    found = find_breaches(gates, records)
    # Seeds with the same result are printed once.
    sentences = list(dict.fromkeys(map(_describe_leak, found)))
    for sentence in sentences[:_SHOWN]:
        print_line(console, sentence, style="bold red")
    if len(sentences) > _SHOWN:
        print_line(console, f"and {len(sentences) - _SHOWN} more leaks", style="bold red")
    return bool(found)


def _print_worse(before: Sequence[Record] | None, found: AuditResult, console: Console) -> bool:
    """Print how much leaked in an earlier audit, and return whether more leaks beyond noise."""
    if before is None:
        return False
    changed = report.changes(before, found.results)
    print_verdict(console, report.comparison_verdict(changed))
    return any(s.direction is report.Direction.worse for s in report.shifts(changed))


def _is_inconclusive(results: Results) -> bool:
    """Whether anybody could not be judged, in any setup, on any network, by any adversary."""
    if not all(results.by(*ATTACKED).values()):
        return True
    return any(group.unclear for group in results.setups.values())


def _describe_leak(leak: Breach) -> str:
    record, gate = leak.record, leak.gate
    where = (
        f"{record.data} #{leak.person} through {record.attack} on {record.model} behind "
        f"{report.defense_words(record.defense)}"
    )
    if gate.metric == IDENTIFIED:
        return f"identified: {where} (gate: at most {gate.threshold:g})"
    return f"leaked: {where}, {gate.metric} {leak.value:.4g} (gate {gate.threshold:g})"
