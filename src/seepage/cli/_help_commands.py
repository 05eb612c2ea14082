"""`seepage list`: the built-in parts by name. `seepage doctor`: what is installed and works."""

from __future__ import annotations

import inspect
import platform
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from textwrap import dedent
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import seepage as sp
from seepage import __version__, data, scoring, zoo
from seepage.attacks._applicability import attacks_on
from seepage.attacks.linear_systems._hybrid import Hybrid
from seepage.audit._words import count_noun, list_words
from seepage.bounds import BOUNDS
from seepage.bounds.risk import RISKS
from seepage.cli._commands import Doctor, List
from seepage.cli._console import print_line
from seepage.clients import LOCALS
from seepage.core import ActiveAttack
from seepage.core._plugins import find_part
from seepage.core._protocols import needs_labels
from seepage.core.errors import SeepageError, install_hint
from seepage.data._load import FAMILIES, NAMED
from seepage.defenses import DEFENSES
from seepage.domains import Image, Signal, Tokens
from seepage.rehearsal import ALL_ATTACKS
from seepage.search._search import Search

# What one of a kind is called, and all of them by name.
_PARTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "attacks": ("attack", ALL_ATTACKS),
    "bounds": ("bound", BOUNDS),
    "risks": ("risk", RISKS),
    "defenses": ("defense", DEFENSES),
    "locals": ("local computation", LOCALS),
    "models": ("model", zoo.MODELS),
    "data": ("data set", NAMED),
    "metrics": ("metric", scoring.METRICS),
}


def list_parts(asked: List, console: Console) -> None:
    """Print each name of a kind with one line about it, or all about one of them."""
    if asked.name is not None:
        _describe_part(asked.kind, asked.name, console)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, line in _read_catalogue(asked.kind).items():
        table.add_row(name, Text(line))
    console.print(table)


def _read_catalogue(kind: str) -> dict[str, str]:
    """Return each name of a kind with one line about it, and the package if it is another's."""
    _, known = _PARTS[kind]
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
_KINDS: Mapping[str, Any] = {
    "images": Image((3, 32, 32)),
    "signals": Signal((1, 140)),
    "rows of tables": data.load("voters").domain,
    "texts": Tokens(8, 50),
}
_SEARCHED = ("steps", "iterations", "restarts", "members", "effort", "budget")


def _describe_part(kind: str, name: str, console: Console) -> None:
    """Print all about one part: what it is, its options, what it needs and costs, its paper."""
    family = name.partition(":")[0]
    if kind == "data" and family in FAMILIES and name not in NAMED:
        source, argument = FAMILIES[family]
        print_line(console, f"{family}:{argument}: {source.description}", style="bold")
        return
    noun, known = _PARTS[kind]
    part: Any = find_part(noun, name, known)
    text = _split_docstring(inspect.getdoc(part) or "")
    if like := re.search(r"^Arguments as for `(\w+)`", inspect.getdoc(part) or "", flags=re.M):
        text |= {"Args": _split_docstring(inspect.getdoc(known[like[1]]) or "")["Args"]}
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


WELL, ILL = 0, 1
# The extra of each optional package, and what it is for.
_EXTRAS: Mapping[str, tuple[str, str]] = {
    "lpips": ("lpips", "the metric lpips, with the published weights"),
    "flwr": ("flower", "recording and auditing Flower runs"),
    "opacus": ("dp", "epsilon of a whole training, and steps made by Opacus"),
    "ray": ("ray", "audits on a cluster: --executor ray"),
    "transformers": ("huggingface", "networks from Hugging Face, and steps of its Trainer"),
    "lightning": ("lightning", "steps of PyTorch Lightning"),
    "accelerate": ("accelerate", "steps of loops with an Accelerator"),
    "mlflow": ("mlflow", "verdicts and pages in MLflow"),
    "nvflare": ("nvflare", "recording NVFlare jobs"),
    "timm": ("timm", "image models from timm"),
    "torchvision": ("vision", "data sets and models of torchvision"),
    "pyarrow": ("parquet", "tables from Parquet files, and seepage report --format parquet"),
    "pydicom": ("dicom", "DICOM files in folders of images"),
    "matplotlib": ("figures", "charts of seepage report --format pdf"),
    "mkdocs": ("docs", "building the documentation"),
}


def diagnose(_: Doctor, console: Console) -> int:
    """Print what is here and what is not, and return 0 if the program itself works."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; audits run on CPU"
    facts = {
        "seepage": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "GPU": gpu,
    }
    for name, fact in facts.items():
        print_line(console, f"{name:8} {fact}")
    psnr = _audit_a_digit()
    works = psnr > 60
    told = f"works: a digit came back at {psnr:.0f} dB" if works else "BROKEN: a digit was not read"
    print_line(console, f"audit    {told}", style="green" if works else "bold red")
    table = Table(box=None, padding=(0, 2, 0, 0), title="optional parts", title_justify="left")
    for column in ("package", "version, or how to install", "for"):
        table.add_column(column, no_wrap=column == "package")
    for package, (extra, purpose) in _EXTRAS.items():
        found = _find_version(package)
        here = Text(found, style="green") if found else Text(install_hint(extra), style="yellow")
        table.add_row(Text(package), here, purpose)
    console.print(table)
    papers = _find_version("seepage_papers")
    print_line(console, f"seepage reproduce and leaderboard: {papers or 'not installed'}")
    return WELL if works else ILL


def _find_version(package: str) -> str:
    """The version of an importable package; empty if it is missing. Nothing is imported."""
    if find_spec(package) is None:
        return ""
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "version unknown"


def _audit_a_digit() -> float:
    """Share one digit's gradient, read it in closed form, and score the guess."""
    digits = sp.data.load("digits")
    task, batch = sp.zoo.mlp(hidden=(16,), domain=digits.domain), digits.batch(1)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    return float(sp.scoring.score(guess, batch).values["psnr"][0])
