"""`seepage dossier`: audits and other evidence as one document for a regulator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from seepage import __version__
from seepage.cli.report_command import print_line, write
from seepage.core.errors import InvalidValue
from seepage.report.dossier import make_dossier, read_dossier
from seepage.report.dossier_sources import read_source
from seepage.report.page.dossier_page import dossier_page

PAGE, DATA = "dossier.html", "dossier.json"


def write_dossier(
    paths: Sequence[Path],
    *,
    out: Path,
    title: str | None,
    author: str,
    against: Path | None,
    console: Console,
) -> None:
    """Write the dossier of audits and files of evidence as a page and as JSON."""
    if out.exists() and not out.is_dir():
        raise InvalidValue(f"expected --out to name a folder, but {str(out)!r} is a file")
    old = None if against is None else read_dossier(against)
    sources = [read_source(path) for path in paths]
    made = make_dossier(
        sources,
        title=title or sources[0].title,
        version=__version__,
        written=datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
        author=author,
        against=old,
    )
    data = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    for name, content in ((DATA, data), (PAGE, dossier_page(made))):
        write(out / name, content)
    print_line(console, f"{made['headline']}.", style="bold")
    for alarm in made["alarms"]:
        print_line(console, alarm, style="bold red")
    if made["changes"] is not None:
        print_line(console, f"Against the last dossier: {made['changes']['headline']}.")
    print_line(console, f"digest: {made['digest']}")
    print_line(console, f"dossier: {out / PAGE} and {out / DATA}")
