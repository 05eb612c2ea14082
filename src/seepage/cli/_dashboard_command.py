"""`seepage dashboard`: one page over many audits, as a file that a browser opens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from seepage.audit._audit_result import AuditResult, load_audit
from seepage.audit._folder import PAGE
from seepage.audit._plan import PLAN, read_format
from seepage.audit._words import count_noun
from seepage.cli._commands import Dashboard
from seepage.cli._console import print_line
from seepage.cli._report_command import write
from seepage.core.errors import DataNotFound, InvalidValue, SeepageError
from seepage.report.page._several_audits import DashboardAudit, dashboard_page

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
    write(target, dashboard_page(audits, unread=unread))
    print_line(console, f"{count_noun(len(audits), 'audit')}\ndashboard: {target}")


def _find_begin(path: Path, audit: AuditResult) -> datetime:
    """When an audit was begun: as it says itself, or of older ones, as their file says."""
    try:
        return datetime.fromisoformat(str(audit.environment["begun"])).astimezone(UTC)
    except (KeyError, ValueError, OverflowError):
        return datetime.fromtimestamp((path / PLAN).stat().st_mtime, UTC)
