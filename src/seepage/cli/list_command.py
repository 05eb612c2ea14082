"""`seepage list`: the names that a spec can use, with what is known of each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage import data, scoring, zoo
from seepage.bounds import BOUNDS
from seepage.bounds.risk import RISKS
from seepage.clients import LOCALS
from seepage.data.load import NAMED
from seepage.defenses import DEFENSES
from seepage.rehearsal import ALL_ATTACKS

_PARTS: Mapping[str, Mapping[str, object]] = {
    "attacks": ALL_ATTACKS,
    "bounds": BOUNDS,
    "risks": RISKS,
    "defenses": DEFENSES,
    "locals": LOCALS,
    "models": zoo.MODELS,
    "data": NAMED,
    "metrics": scoring.METRICS,
}


def list_parts(kind: str, console: Console) -> None:
    """Print each name of a kind with one line about it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, line in _read_catalogue(kind).items():
        table.add_row(name, Text(line))
    console.print(table)


def _read_catalogue(kind: str) -> dict[str, str]:
    """Return each name of a kind with one line about it, and the package if it is another's."""
    described = {"models": zoo.catalogue, "data": data.catalogue, "metrics": scoring.catalogue}
    known = _PARTS[kind]
    lines = described[kind]() if kind in described else _read_lines(known)
    origin = getattr(known, "origin", lambda _: None)
    return {
        name: f"{line} [{package}]".strip() if (package := origin(name)) else line
        for name, line in lines.items()
    }


def _read_lines(parts: Mapping[str, object]) -> dict[str, str]:
    """Read the first line about each part, and the key of every paper it cites."""
    lines = {}
    for name, part in parts.items():
        text = part.__doc__ or ""
        keys = dict.fromkeys(re.findall(r"\(([a-z]+\d{4}[a-z]+)\)", text))
        first = text.strip().partition("\n")[0]
        lines[name] = f"{first} ({', '.join(keys)})" if keys else first
    return lines
