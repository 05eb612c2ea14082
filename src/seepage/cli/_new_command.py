"""`seepage new`: a commented spec from a few options, ready to run and to edit."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from seepage.audit._spec import build_spec
from seepage.audit._spec_entries import read_chains, read_words
from seepage.audit._spec_text import SpecSource, write_entry
from seepage.audit._words import count_noun
from seepage.cli._commands import New
from seepage.cli._console import print_line
from seepage.cli._network import read_network
from seepage.cli._report_command import write
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


_ATTACKS = ("auto:effort=quick",)


def write_scenario(asked: New) -> dict[str, Any]:
    """The scenario as plain data."""
    steps = asked.local_steps
    local = {"name": "FedAvg", "lr": 0.1, "steps": steps} if steps else {"name": "Gradient"}
    return {
        "data": [_choose_people(asked, size) for size in asked.batch_size or (1,)],
        "models": read_network(asked.model or _DEFAULTS["model"], asked.option),
        "locals": local,
        "defenses": read_chains(asked.defense),
        "threats": {"knows_labels": asked.knows_labels},
        "attacks": [read_words(written, "attack") for written in asked.attack or _ATTACKS],
    }


def _choose_people(asked: New, size: int) -> dict[str, Any]:
    data = read_words(asked.data or _DEFAULTS["data"], "data")
    return {**data, "people": -(-asked.people // size) * size, "batch_size": size}


def _write_text(asked: New) -> str:
    """The spec as TOML, with a comment on each entry."""
    title = write_entry(f"{asked.model} on {asked.data}".replace("\\", "/"))
    lines = [f"title = {title}", "seeds = [0]", "", "[[scenario]]"]
    for key, value in write_scenario(asked).items():
        lines += [f"# {_COMMENTS[key]}", f"{key} = {write_entry(value)}"]
    return "\n".join(lines) + "\n"


def _ask_missing(key: str, given: str | None, console: Console) -> str:
    """Ask on a terminal for what is not given; elsewhere take the default."""
    if given is None and sys.stdin.isatty() and console.is_terminal:
        asked = console.input(f"{_QUESTIONS[key]} [{_DEFAULTS[key]}]: ", markup=False)
        given = asked.strip() or None
    return given or _DEFAULTS[key]


def write_new(asked: New, console: Console) -> None:
    """Check a spec by building it, write it, and say what to do with it."""
    asked = replace(
        asked,
        data=_ask_missing("data", asked.data, console),
        model=_ask_missing("model", asked.model, console),
    )
    out, text = asked.out, _write_text(asked)
    if out.exists() and not asked.overwrite:
        raise InvalidValue(f"{str(out)!r} is there already; choose another name, or --overwrite")
    # Without the name of the file: a mistake is in the options, and there is no file yet.
    built = build_spec(SpecSource("", text))
    write(out, text)
    named = shlex.quote(str(out))
    print_line(
        console,
        f"{out}: {count_noun(len(built.cases), 'case')}, controls included\n"
        f"what it costs: seepage audit {named} --dry-run\nto run it: seepage audit {named}",
    )
