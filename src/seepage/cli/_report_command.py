"""`seepage report`, `dossier`, `dashboard`, `verify` and `purge`: what audits found and keep."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from seepage import __version__, report
from seepage.audit._audit_result import AuditResult, load_audit
from seepage.audit._choices import Choice, leakages
from seepage.audit._folder import PAGE, find_damage, purge
from seepage.audit._plan import PLAN, read_format
from seepage.audit._record import Record
from seepage.audit._words import count_noun, label_defenses
from seepage.cli._commands import Dashboard, Dossier, Purge, Report, Verify
from seepage.cli._console import print_line, print_verdict, write_file
from seepage.core._whole_file import read_plain
from seepage.core.errors import (
    DataNotFound,
    InvalidValue,
    SeepageError,
    UnknownName,
    UnreadableFile,
)
from seepage.report._dossier import make_dossier, read_dossier
from seepage.report._dossier_sources import read_source
from seepage.report._exports import as_junit, as_sarif
from seepage.report._figure import leak_figure
from seepage.report._written_tables import make_pivot, pivot_latex, pivot_markdown
from seepage.report.page._dossier_page import dossier_page
from seepage.report.page._several_audits import DashboardAudit, dashboard_page

_WHOLE, _DAMAGED = 0, 1
# Sentences on damage that are printed.
_SHOWN = 20
_SUFFIX = {"markdown": "md", "pivot": "pivot.md", "latex": "tex", "junit": "junit.xml"}
# Formats that cannot compare two audits.
_OF_ONE = ("pivot", "latex", "svg", "pdf", "junit", "sarif")
_TABLES: Mapping[str, Callable[..., str | bytes]] = {
    "csv": report.as_csv,
    "parquet": report.as_parquet,
}


def _read_choices(path: Path, records: Sequence[Record]) -> list[Choice]:
    """Make a choice of every defense in a file of utilities.

    The file is JSON that maps defenses, as the tables name them, to a number, e.g. test accuracy.
    """
    utilities = _read_utilities(path)
    found = leakages(records)
    labels = label_defenses(leakage.defense for leakage in found)
    worst = {labels[leakage.defense]: leakage.worst for leakage in found}
    for defense in utilities:
        if defense not in worst:
            raise UnknownName("defense", defense, worst, where=f"in {path.name}")
    return [Choice(defense, worst[defense], utility) for defense, utility in utilities.items()]


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < sys.float_info.max


def _read_utilities(path: Path) -> Mapping[str, float]:
    try:
        found = json.loads(read_plain(path, follow=True, largest=2**20))
    except UnreadableFile:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnreadableFile(
            f"cannot read utilities from {str(path)!r}: {reason}; expected JSON"
        ) from error
    if not isinstance(found, dict) or not all(map(_is_finite, found.values())):
        raise InvalidValue(
            f"expected {path.name} to map defenses to numbers, such as "
            f'{{"Prune 0.9": 0.87}}, got {str(found)[:60]}'
        )
    # Before 0.2, tables called it "none".
    return {"no defense" if d == "none" else str(d): float(v) for d, v in found.items()}


def write_report(asked: Report, console: Console) -> None:
    """Write the report of one audit, or of how a second differs from a first."""
    paths, form, out, utility = asked.directories, asked.form, asked.out, asked.utility
    if len(paths) > 2:
        raise InvalidValue(f"expected one audit, or two to compare, got {len(paths)} directories")
    if utility is not None and (len(paths) > 1 or form != "html"):
        raise InvalidValue("--utility belongs to the page of one audit; leave it out here")
    if len(paths) > 1 and form in _OF_ONE:
        raise InvalidValue(f"--format {form} is of one audit, got two; use html, markdown or csv")
    audits = [load_audit(path) for path in paths]
    costs = _read_choices(utility, audits[0].records) if utility is not None else []
    name = "report" if len(audits) == 1 else "comparison"
    target = out or paths[-1] / f"{name}.{_SUFFIX.get(form, form)}"
    if len(audits) == 1:
        write_file(target, _write_audit(audits[0], form, costs))
        _print_verdict(report.audit_verdict(audits[0]), audits, console)
    else:
        found = report.changes(audits[0].results, audits[1].results)
        write_file(target, _write_comparison(*audits, found=found, form=form))
        _print_verdict(report.comparison_verdict(found), audits, console)
        drawn = report.change_table(found)
        if drawn.row_count:
            console.print(drawn)
    print_line(console, f"report: {target}")


def save_page(audit: AuditResult) -> None:
    """Write the page of an audit into its directory."""
    write_file(audit.path / PAGE, report.audit_page(audit))


def _write_audit(audit: AuditResult, form: str, costs: Sequence[Choice]) -> str | bytes:
    match form:
        case "html":
            return report.audit_page(audit, choices=costs)
        case "markdown":
            return report.audit_markdown(audit)
        case "pivot":
            pivot = make_pivot(report.summarise(audit.results))
            return pivot_markdown(pivot, missing=report.missing(audit))
        case "latex":
            pivot = make_pivot(report.summarise(audit.results))
            return pivot_latex(pivot, title=audit.title, missing=report.missing(audit))
        case "svg":
            return leak_figure(audit.results).svg()
        case "pdf":
            return leak_figure(audit.results).pdf()
        case "junit":
            return as_junit(audit.title, audit.results)
        case "sarif":
            return as_sarif(audit.title, audit.results, version=__version__)
        case "csv" | "parquet":
            return _TABLES[form](
                [*report.result_rows(audit.results), *report.flat_bounds(audit.bounds)]
            )
        case _:
            return report.as_json(
                {
                    "title": audit.title,
                    "verdict": _sentences(report.audit_verdict(audit)),
                    "missing": report.missing(audit),
                    "environment": audit.environment,
                    "spec": audit.spec,
                    "records": [report.labelled_record(record) for record in audit.records],
                    "bounds": [report.labelled_record(record) for record in audit.bounds],
                }
            )


def _write_comparison(
    before: AuditResult, after: AuditResult, *, found: Sequence[report.Change], form: str
) -> str | bytes:
    match form:
        case "html":
            return report.comparison_page(before, after)
        case "markdown":
            return report.comparison_markdown(before.path.name, after.path.name, found)
        case "csv" | "parquet":
            return _TABLES[form](report.change_rows(found))
        case _:
            judged = _sentences(report.comparison_verdict(found))
            return report.as_json({"verdict": judged, "changes": report.change_rows(found)})


def _sentences(judged: report.Verdict) -> list[str]:
    return [f"{judged.headline}.", *judged.alarms, *judged.details]


def _print_verdict(judged: report.Verdict, audits: Sequence[AuditResult], console: Console) -> None:
    print_verdict(console, judged)
    for line in filter(None, map(report.missing, audits)):
        print_line(console, line)


def verify_audit(asked: Verify, console: Console) -> int:
    """Print what is missing or was altered, and return the exit code."""
    path = asked.directory
    if path.is_file():
        digest = read_dossier(path)["digest"]
        print_line(console, f"the dossier is as it was written: {digest}")
        return _WHOLE
    found = find_damage(path)
    for sentence in found[:_SHOWN]:
        print_line(console, sentence, style="yellow")
    if len(found) > _SHOWN:
        print_line(console, f"and {len(found) - _SHOWN} more", style="yellow")
    if found:
        print_line(console, f"{path} is damaged; seepage audit --resume makes it whole")
        return _DAMAGED
    read = load_audit(path)
    count = len(read.every_record)
    if read.private:
        are = count_noun(count, "record and its files are", "records and their files are")
        print_line(console, f"{are} as they were written")
    else:
        are = (
            f"{count_noun(count, 'record')} {'is as it was' if count == 1 else 'are as they were'}"
        )
        print_line(console, f"{are} written; private inputs and guesses are not stored with them")
    return _WHOLE


def purge_audit(asked: Purge, console: Console) -> None:
    """Remove what is private in an audit, and write its page without it."""
    path = asked.directory
    removed = count_noun(purge(path), "file")
    if (path / PAGE).exists():
        save_page(load_audit(path))
    print_line(
        console,
        f"{removed} removed from {path}: private inputs, guesses, checkpoints and pictures; the "
        "scores are still there. Copies elsewhere, such as reports in other formats and backups, "
        "are not touched",
    )


def write_dossier(asked: Dossier, console: Console) -> None:
    """Write the dossier of audits and files of evidence as a page and as JSON."""
    out = asked.out
    if out.exists() and not out.is_dir():
        raise InvalidValue(f"expected --out to name a folder, but {str(out)!r} is a file")
    old = None if asked.against is None else read_dossier(asked.against)
    sources = [read_source(path) for path in asked.sources]
    made = make_dossier(
        sources,
        title=asked.title or sources[0].title,
        version=__version__,
        written=datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
        author=asked.author,
        against=old,
    )
    data, page = out / "dossier.json", out / "dossier.html"
    write_file(data, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    write_file(page, dossier_page(made))
    print_line(console, f"{made['headline']}.", style="bold")
    for alarm in made["alarms"]:
        print_line(console, alarm, style="bold red")
    if made["changes"] is not None:
        print_line(console, f"Against the last dossier: {made['changes']['headline']}.")
    print_line(console, f"digest: {made['digest']}")
    print_line(console, f"dossier: {page} and {data}")


DASHBOARD = "dashboard.html"
# Folders below the ones that are named, and audits in all.
_DEEPEST, _MOST = 3, 200


def _find_audits(folders: Sequence[Path]) -> list[Path]:
    """Find audits in folders and in folders below them; links are not followed.

    Raises:
        DataNotFound: If there is none.
    """
    found = list(dict.fromkeys(audit for folder in folders for audit in _walk(folder, _DEEPEST)))
    if not found:
        listed = ", ".join(repr(str(folder)) for folder in folders)
        raise DataNotFound(f"no audit in {listed} or below; name the folders that --out wrote")
    if len(found) > _MOST:
        raise InvalidValue(f"expected at most {_MOST} audits, got {len(found)}; name fewer folders")
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / PLAN).is_file() or read_format(folder) is not None:
        yield folder
        return
    if depth and folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from _walk(inner, depth - 1)


def write_dashboard(asked: Dashboard, console: Console) -> None:
    """Read every audit, and write one page that links to their reports."""
    if asked.serve or asked.port is not None:
        raise InvalidValue(
            f"--serve was removed; run `seepage dashboard DIR` and open its {DASHBOARD} in a "
            "browser"
        )
    folders = asked.directories or (Path(),)
    target = asked.out or folders[0] / DASHBOARD
    audits, unread = list[DashboardAudit](), dict[str, str]()
    for path in _find_audits(folders):
        try:
            result = load_audit(path)
        except SeepageError as error:
            unread[str(path)] = str(error)
            continue
        link = os.path.relpath(path / PAGE, target.parent).replace(os.sep, "/")
        address = quote(link) if (path / PAGE).is_file() else ""
        audits.append(DashboardAudit(path.name, _find_begin(path, result), result, address))
    if not audits:
        raise DataNotFound(f"no audit can be read: {next(iter(unread.values()))}")
    write_file(target, dashboard_page(audits, unread=unread))
    print_line(console, f"{count_noun(len(audits), 'audit')}\ndashboard: {target}")


def _find_begin(path: Path, audit: AuditResult) -> datetime:
    """When an audit was begun: as it says itself, or of older ones, as their file says."""
    try:
        return datetime.fromisoformat(str(audit.environment["begun"])).astimezone(UTC)
    except (KeyError, ValueError, OverflowError):
        return datetime.fromtimestamp((path / PLAN).stat().st_mtime, UTC)
