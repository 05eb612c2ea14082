"""`seepage dashboard`: one page over many audits, as a file or served on this machine alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from seepage.audit.audit_result import AuditResult, load_audit
from seepage.audit.database import DATABASE
from seepage.audit.folder import PAGE
from seepage.cli.report_command import print_line, write
from seepage.core.errors import DataNotFound, InvalidValue, SeepageError
from seepage.core.whole_file import read_plain
from seepage.report.page.dashboard_page import DashboardAudit, dashboard_page
from seepage.report.words import count_noun

DASHBOARD = "dashboard.html"
# Folders below the ones that are named, and audits in all.
_DEEPEST, _MOST = 3, 200
_LOCAL = "127.0.0.1"


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
    if (folder / DATABASE).is_file():
        yield folder
        return
    if depth and folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from _walk(inner, depth - 1)


def _make_dashboard(folders: Sequence[Path], link: Callable[[int, Path], str]) -> tuple[str, int]:
    """Read every audit, and write the page; returns it with the number of audits."""
    audits, unread = list[DashboardAudit](), dict[str, str]()
    for number, path in enumerate(_find_audits(folders)):
        try:
            result = load_audit(path)
        except SeepageError as error:
            unread[str(path)] = str(error)
            continue
        address = link(number, path) if (path / PAGE).is_file() else ""
        audits.append(DashboardAudit(path.name, _find_begin(path, result), result, address))
    if not audits:
        raise DataNotFound(f"no audit can be read: {next(iter(unread.values()))}")
    return dashboard_page(audits, unread=unread), len(audits)


def _find_begin(path: Path, audit: AuditResult) -> datetime:
    """When an audit was begun: as it says itself, or of older ones, as their file says."""
    try:
        return datetime.fromisoformat(str(audit.environment["begun"])).astimezone(UTC)
    except (KeyError, ValueError, OverflowError):
        return datetime.fromtimestamp((path / DATABASE).stat().st_mtime, UTC)


def write_dashboard(folders: Sequence[Path], out: Path | None, console: Console) -> None:
    """Write the page beside the audits."""
    target = out or folders[0] / DASHBOARD

    def link(_: int, path: Path) -> str:
        return quote(os.path.relpath(path / PAGE, target.parent).replace(os.sep, "/"))

    page, count = _make_dashboard(folders, link)
    write(target, page)
    print_line(console, f"{count_noun(count, 'audit')}\ndashboard: {target}")


def serve_dashboard(folders: Sequence[Path], port: int, console: Console) -> None:
    """Serve the page, made anew at every visit, to this machine until it is interrupted."""
    _find_audits(folders)
    try:
        server = ThreadingHTTPServer((_LOCAL, port), _make_handler(folders))
    except OSError as error:
        raise InvalidValue(
            f"cannot listen on port {port}: {error.strerror}; choose --port"
        ) from None
    with server:
        address = f"http://{_LOCAL}:{server.server_port}/"
        print_line(console, f"dashboard: {address} (this machine only; Ctrl-C ends it)")
        server.serve_forever()


def _make_handler(folders: Sequence[Path]) -> type[BaseHTTPRequestHandler]:
    class Visit(BaseHTTPRequestHandler):
        """Answers with the dashboard or with one of the reports it links to, and nothing else."""

        def do_GET(self) -> None:
            """Answer one request."""
            # A page elsewhere may resolve its own name to this machine.
            host = self.headers.get("Host", "").partition(":")[0]
            if host not in (_LOCAL, "localhost"):
                self.send_error(403, "only this machine may ask")
                return
            try:
                content = _read_page(folders, self.path)
            except (SeepageError, OSError) as error:
                self.send_error(500, " ".join(str(error).split())[:200])
                return
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Visit


def _read_page(folders: Sequence[Path], address: str) -> bytes | None:
    """The page at an address: the dashboard, or the report of an audit by its number."""
    if address == "/":
        return _make_dashboard(folders, lambda number, _: f"/{number}")[0].encode()
    audits = _find_audits(folders)
    number = address.removeprefix("/")
    if not number.isdecimal() or int(number) >= len(audits):
        return None
    report = audits[int(number)] / PAGE
    return read_plain(report) if report.is_file() else None
