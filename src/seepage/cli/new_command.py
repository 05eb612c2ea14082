"""`seepage new`: a commented spec from a few options, ready to run and to edit."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from seepage.audit.spec import build_spec
from seepage.audit.spec_text import SpecSource, write_entry
from seepage.audit.words import count_noun
from seepage.cli.options import read_chains, read_network, read_part
from seepage.cli.report_command import print_line, write
from seepage.core.errors import InvalidValue

_DEFAULTS: Mapping[str, str] = {"data": "digits", "model": "lenet"}
_QUESTIONS: Mapping[str, str] = {
    "data": "Whose data? A name of `seepage list data`, npz:FILE or folder:PATH",
    "model": "Which model? A name of `seepage list models`, or FILE.py:NAME",
}
_COMMENTS: Mapping[str, str] = {
    "data": "Whose data is attacked (`seepage list data`): people drawn at random, in batches.",
    "models": "What is trained: a name of `seepage list models`, or package.module:factory.",
    "locals": "What clients compute (`seepage list locals`).",
    "defenses": "What they do before sharing (`seepage list defenses`); [] is no defense.",
    "threats": "What the adversary knows besides the update: knows_labels, batchnorm, server, ...",
    "attacks": "What it does; `seepage list attacks NAME` shows the options of each.",
}


@dataclass(frozen=True, kw_only=True)
class NewSpec:
    """The options of `seepage new`, see its help."""

    data: str
    model: str
    options: tuple[str, ...] = ()
    people: int = 4
    batch_sizes: tuple[int, ...] = (1,)
    attacks: tuple[str, ...] = ("auto:effort=quick",)
    defenses: tuple[str, ...] = ()
    local_steps: int | None = None
    knows_labels: bool = False

    def scenario(self) -> dict[str, Any]:
        """The scenario as plain data."""
        steps = self.local_steps
        local = {"name": "FedAvg", "lr": 0.1, "steps": steps} if steps else {"name": "Gradient"}
        return {
            "data": [self._choose_people(size) for size in self.batch_sizes],
            "models": read_network(self.model, self.options),
            "locals": local,
            "defenses": read_chains(self.defenses),
            "threats": {"knows_labels": self.knows_labels},
            "attacks": [read_part(written, "attack") for written in self.attacks],
        }

    def _choose_people(self, size: int) -> dict[str, Any]:
        people = -(-self.people // size) * size
        return {**read_part(self.data, "data"), "people": people, "batch_size": size}

    def text(self) -> str:
        """The spec as TOML, with a comment on each entry."""
        title = write_entry(f"{self.model} on {self.data}".replace("\\", "/"))
        lines = [f"title = {title}", "seeds = [0]", ""]
        lines.append("[[scenario]]")
        for key, value in self.scenario().items():
            lines += [f"# {_COMMENTS[key]}", f"{key} = {write_entry(value)}"]
        return "\n".join(lines) + "\n"


def ask_missing(given: Mapping[str, str | None], console: Console) -> dict[str, str]:
    """Ask on a terminal for what is not given; elsewhere take the default."""
    found: dict[str, str] = {}
    for key, value in given.items():
        if value is None and sys.stdin.isatty() and console.is_terminal:
            asked = console.input(f"{_QUESTIONS[key]} [{_DEFAULTS[key]}]: ", markup=False)
            value = asked.strip() or None
        found[key] = value or _DEFAULTS[key]
    return found


def write_spec(wanted: NewSpec, out: Path, *, overwrite: bool, console: Console) -> None:
    """Check a spec by building it, write it, and say what to do with it."""
    if out.exists() and not overwrite:
        raise InvalidValue(f"{str(out)!r} is there already; choose another name, or --overwrite")
    # Without the name of the file: a mistake is in the options, and there is no file yet.
    built = build_spec(SpecSource("", wanted.text()))
    write(out, wanted.text())
    named = shlex.quote(str(out))
    print_line(
        console,
        f"{out}: {count_noun(len(built.cases), 'case')}, controls included\n"
        f"what it costs: seepage audit {named} --dry-run\nto run it: seepage audit {named}",
    )
