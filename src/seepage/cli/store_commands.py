"""`seepage verify` and `seepage purge`: whether an audit is whole, and what of it to keep."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from seepage.audit.audit_result import load_audit
from seepage.audit.folder import PAGE
from seepage.audit.verify import find_damage, purge
from seepage.cli.dossier_command import read_dossier
from seepage.cli.report_command import print_line, save_page
from seepage.report.words import count_noun

WHOLE, DAMAGED = 0, 1
_SHOWN = 20


def verify_audit(path: Path, console: Console) -> int:
    """Print what is missing or was altered, and return the exit code."""
    if path.is_file():
        return _verify_dossier(path, console)
    found = find_damage(path)
    for sentence in found[:_SHOWN]:
        print_line(console, sentence, style="yellow")
    if len(found) > _SHOWN:
        print_line(console, f"and {len(found) - _SHOWN} more", style="yellow")
    if found:
        print_line(console, f"{path} is damaged; seepage audit --resume makes it whole")
        return DAMAGED
    read = load_audit(path)
    count = len(read.records) + len(read.bounds) + len(read.controls)
    are = count_noun(count, "record and its files are", "records and their files are")
    print_line(console, f"{are} as they were written")
    return WHOLE


def _verify_dossier(path: Path, console: Console) -> int:
    read = read_dossier(path)
    print_line(console, f"the dossier is as it was written: {read['digest']}")
    return WHOLE


def purge_audit(path: Path, console: Console) -> None:
    """Remove what is private in an audit, and write its page without it."""
    removed = count_noun(purge(path), "file")
    if (path / PAGE).exists():
        save_page(load_audit(path))
    print_line(
        console,
        f"{removed} removed from {path}: private inputs, guesses, checkpoints and pictures; the "
        "scores are still there. Copies elsewhere, such as reports in other formats and backups, "
        "are not touched",
    )
