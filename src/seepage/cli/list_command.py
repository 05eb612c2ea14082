"""`seepage list`: the names that a spec can use, with what is known of each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from textwrap import dedent
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage import data, scoring, zoo
from seepage.attacks.applicability import attacks_on
from seepage.attacks.linear_systems.hybrid import Hybrid
from seepage.bounds import BOUNDS
from seepage.bounds.risk import RISKS
from seepage.cli.report_command import print_line
from seepage.clients import LOCALS
from seepage.core import ActiveAttack
from seepage.core.errors import SeepageError
from seepage.core.plugins import find_part
from seepage.core.protocols import needs_labels
from seepage.data.load import FAMILIES, NAMED
from seepage.defenses import DEFENSES
from seepage.domains import Image, Signal, Tokens
from seepage.rehearsal import ALL_ATTACKS
from seepage.report.words import count_noun, list_words
from seepage.search.search import Search

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
    known = _PARTS[kind]
    lines = _DESCRIBED[kind]() if kind in _DESCRIBED else _read_lines(known)
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


_DESCRIBED = {"models": zoo.catalogue, "data": data.catalogue, "metrics": scoring.catalogue}
_ONE: Mapping[str, str] = {
    "attacks": "attack",
    "bounds": "bound",
    "risks": "risk",
    "defenses": "defense",
    "locals": "local computation",
    "models": "model",
    "data": "data set",
    "metrics": "metric",
}
_KINDS: Mapping[str, Any] = {
    "images": Image((3, 32, 32)),
    "signals": Signal((1, 140)),
    "rows of tables": data.load("voters").domain,
    "texts": Tokens(8, 50),
}
_SEARCHED = ("steps", "iterations", "restarts", "members", "effort", "budget")


def describe_part(kind: str, name: str, console: Console) -> None:
    """Print all about one part: what it is, its options, what it needs and costs, its paper."""
    family = name.partition(":")[0]
    if kind == "data" and family in FAMILIES and name not in NAMED:
        source, argument = FAMILIES[family]
        print_line(console, f"{family}:{argument}: {source.description}", style="bold")
        return
    part: Any = find_part(_ONE[kind], name, _PARTS[kind])
    text = _split_docstring(inspect.getdoc(part) or "")
    if like := re.search(r"^Arguments as for `(\w+)`", inspect.getdoc(part) or "", flags=re.M):
        text |= {"Args": _split_docstring(inspect.getdoc(_PARTS[kind][like[1]]) or "")["Args"]}
    first = _read_catalogue(kind).get(name, text[""]) if kind in _DESCRIBED else text[""]
    print_line(console, f"{name}: {first}", style="bold")
    options = [] if kind in ("data", "metrics") else _list_options(part, text.get("Args", ""))
    if options:
        table = Table(box=None, padding=(0, 2, 0, 0), title="options", title_justify="left")
        for column in ("name", "default", "meaning"):
            table.add_column(column, overflow="fold", no_wrap=column == "name")
        for row in options:
            table.add_row(*map(Text, row))
        console.print(table)
    facts = _list_needs(name, part) if kind == "attacks" else {}
    for title in ("Deviations", "References"):
        if title in text:
            facts[{"References": "paper"}.get(title, title.lower())] = text[title]
    for title, fact in facts.items():
        print_line(console, f"{title}: {fact}")


def _split_docstring(text: str) -> dict[str, str]:
    r"""The first line under "", and each section in one line, or as it is for Args.

    Example:
        >>> _split_docstring("A thing.\n\nReferences:\n    Doe,\n    2020\n")
        {'': 'A thing.', 'References': 'Doe, 2020'}
    """
    first, *parts = re.split(
        r"^(Args|Deviations|References|Example|Raises|Returns):$", text, flags=re.M
    )
    found = {"": first.strip().partition("\n")[0]}
    for title, content in zip(parts[::2], parts[1::2], strict=True):
        body = dedent(content.strip("\n"))
        found[title] = body if title == "Args" else " ".join(body.split())
    return found


def _list_options(part: Callable[..., object], arguments: str) -> list[tuple[str, str, str]]:
    """Name, default and meaning of every option that a spec can set."""
    try:
        parameters = inspect.signature(part).parameters
    except (TypeError, ValueError):
        return []
    meanings = {
        name: " ".join(words.split())
        for name, words in re.findall(r"^(\w+): (.*?)(?=^\w|\Z)", arguments, flags=re.M | re.S)
    }
    hidden = ("engine", "domain", "classes", "self")
    return [
        (name, _write_default(parameter.default), meanings.get(name, ""))
        for name, parameter in parameters.items()
        if name not in hidden
    ]


def _write_default(value: object) -> str:
    """Write a default as a spec would; nothing for what a spec cannot write.

    Example:
        >>> _write_default(None), _write_default(True), _write_default(1)
        ('-', 'true', '1')
    """
    if value is inspect.Parameter.empty:
        return "needed"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "-"
    return str(value) if isinstance(value, int | float | str | tuple) else ""


def _list_needs(name: str, recipe: Callable[..., object]) -> dict[str, str]:
    """What an attack is for, what it needs and what it costs, as far as its recipe says."""
    kinds = [kind for kind, domain in _KINDS.items() if name in attacks_on(domain)]
    facts = {"for": list_words(kinds)} if kinds else {}
    try:
        made = recipe()
    except (SeepageError, TypeError):
        return facts
    if isinstance(made, ActiveAttack):
        facts["needs"] = "a malicious server: server = 'malicious' in the threat"
    elif needs_labels(made):
        facts["needs"] = "the labels: knows_labels = true in the threat, or infer_labels = true"
    facts["cost"] = _tell_cost(made, inspect.signature(recipe).parameters)
    return facts


def _tell_cost(attack: object, options: Mapping[str, inspect.Parameter]) -> str:
    """Whether it is a search and how long by default, or a closed form."""
    searched = [name for name in _SEARCHED if name in options]
    search = getattr(getattr(attack, "attack", attack), "search", None)
    if isinstance(search, Search):
        runs = count_noun(search.restarts, "start")
        long = f"{search.steps:,} steps from {runs}"
    elif isinstance(attack, Hybrid):
        counts = [f"{correction.steps:,}" for correction in attack.corrections]
        long = f"{list_words(counts)} steps for the first, second and further layers"
    elif not searched:
        return "one pass over the update, usually below a second"
    else:
        given = {name: options[name].default for name in searched}
        told = [f"{n} = {_write_default(v)}" for n, v in given.items() if v is not None]
        long = ", ".join(told)
    return f"a search by default of {long}; seepage audit --dry-run says how long that takes here"
