"""Models on the command line; `seepage inspect` and `vet`: what they give away by themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage.audit._spec_entries import explain_errors, find_dataset, read_words
from seepage.audit._words import list_words
from seepage.cli._commands import Inspect, Vet
from seepage.cli._console import print_line
from seepage.core import Domain, Task
from seepage.core._part_text import read_option
from seepage.core.errors import InvalidValue, UnknownName
from seepage.domains import CIFAR10, Tokens, domain_of_shape
from seepage.exposure._inspection import FirstLayerCount, Inspection, inspection
from seepage.exposure._vet import ON_DATA, Judgement, VettingVerdict, vet
from seepage.zoo._models import build
from seepage.zoo._weights import load_weights

# Numbers in one input: a hundred times as many as a photograph has.
_LARGEST = 100_000_000
_DIGITS = 20


def read_network(model: str, options: Iterable[str]) -> dict[str, Any]:
    """Read --model and the options of the network as the table that a spec has."""
    table = read_words(model, "model")
    return {**table, "name": _name_module(table["name"]), **dict(map(read_option, options))}


def _name_module(name: str) -> str:
    """Name what is in a file below the current folder as Python does: `nets/small.py:Net`."""
    path, _, inside = name.partition(":")
    if not path.endswith(".py"):
        return name
    file, here = Path(path), Path.cwd()
    if not file.is_file():
        beside = (one.as_posix() for one in file.parent.glob("*.py"))
        raise UnknownName("file", path, beside)
    if not inside:
        held = re.findall(r"^(?:class|def) (\w+)", file.read_text(errors="replace"), re.M)
        raise InvalidValue(
            f"expected --model as {path}:NAME, with a class or function of that file"
            + (f" ({', '.join(held)})" if held else "")
            + f", got {path!r}"
        )
    place = file.resolve()
    if not place.is_relative_to(here.resolve()):
        raise InvalidValue(
            f"expected a file below the current folder, got {path!r}; run the command in "
            f"{str(file.parent)!r} and write {file.name}:{inside}"
        )
    words = place.relative_to(here.resolve()).with_suffix("").parts
    if not all(map(str.isidentifier, words)) or words[0] == "__main__":
        raise InvalidValue(
            f"expected a path that Python can import, of letters, digits and _, got {path!r}; "
            "rename it"
        )
    found = find_spec(words[0])
    homes = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    if homes and not any(home and place.is_relative_to(Path(home).resolve()) for home in homes):
        raise InvalidValue(
            f"Python imports {words[0]!r} from {homes[0]!r} instead of {path!r}; rename it"
        )
    return f"{'.'.join(words)}:{inside}"


def read_shape(shape: str) -> tuple[int, ...]:
    """Read the shape of one input.

    Example:
        >>> read_shape("3x32x32")
        (3, 32, 32)
        >>> read_shape("12")
        (12,)
    """
    # Python makes no numbers of thousands of digits.
    read = tuple(int(s) for s in shape.split("x") if s.isdecimal() and len(s) < _DIGITS)
    if len(read) not in (1, 2, 3) or shape.count("x") != len(read) - 1:
        raise InvalidValue(
            f"expected --shape as channels and sizes, such as 3x32x32 or 1x140, or as the "
            f"number of columns of a row, such as 12, got {shape!r}"
        )
    if (entries := prod(read)) > _LARGEST:
        raise InvalidValue(
            f"expected --shape of {_LARGEST:,} numbers or fewer, got {shape}, which are {entries:,}"
        )
    return read


# Columns that were standardised hardly ever leave this range.
STANDARDISED = (-8.0, 8.0)
# Exit codes; 1 and 2 mean elsewhere that something failed or that the usage was wrong.
EXIT: Mapping[Judgement, int] = MappingProxyType({"clean": 0, "suspicious": 3, "malicious": 4})
STYLES: Mapping[str, str] = MappingProxyType(
    {"clean": "green", "exposed": "dim", "suspicious": "yellow", "malicious": "red"}
)


def _read_domain(shape: str | None) -> Domain:
    """Make the domain of a shape such as `3x32x32`, `1x140` or `12`; None for CIFAR images."""
    if shape is None:
        return CIFAR10
    read = read_shape(shape)
    return domain_of_shape(read, bounds=STANDARDISED if len(read) == 1 else (0.0, 1.0))


def _require_rows_as_rows(task: Task) -> None:
    """Refuse a network that reads rows if its inputs were said to be signals of one channel."""
    shape = tuple(task.domain.shape)
    if len(shape) == 2 and shape[0] == 1 and len(task.output_shape) == 2:
        raise InvalidValue(
            f"{task.name} returns {tuple(task.output_shape)} for an input of shape {shape}, as "
            f"networks do that read rows of a table; give --shape {shape[1]}"
        )


def _read_texts(tokens: str) -> Tokens:
    """Read the length of a text and the size of the vocabulary, such as `128x30522`."""
    read = [int(size) for size in tokens.split("x") if size.isdecimal() and len(size) < 10]
    if len(read) != 2 or tokens.count("x") != 1:
        raise InvalidValue(
            f"expected --tokens as length and vocabulary, such as 128x30522, got {tokens!r}"
        )
    return Tokens(length=read[0], vocabulary=read[1])


def inspect_models(asked: Inspect, console: Console) -> None:
    """Inspect each network and print what was found."""
    domain = _read_domain(asked.shape) if asked.tokens is None else _read_texts(asked.tokens)
    as_json = asked.form == "json"
    found = []
    for name in asked.models:
        table = read_network(name, asked.option)
        with explain_errors(name):
            task = build(table.pop("name"), options=table, fitted={"domain": domain})
            _require_rows_as_rows(task)
            found.append(inspection(task, numerical=asked.numerical))
        if not as_json:
            _print_inspection(found[-1], console)
    if as_json:
        print_line(console, json.dumps([_list_numbers(one) for one in found], indent=1))


def _print_inspection(found: Inspection, console: Console) -> None:
    metric = found.metric
    title = Text(found.model, style="bold")
    if metric is not None:
        title.append(f"   c(M) {'<=' if metric.at_most else '='} {round(metric.value)}")
    console.print(title)
    if metric is not None and metric.layers:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("layer")
        for column in ("unknowns", "equations", "rank", "deficiency"):
            table.add_column(column, justify="right")
        for layer in metric.layers:
            most = "at most " if layer.at_most else ""
            ranks = (f"{most}{layer.rank}", f"{most}{layer.deficiency}")
            table.add_row(Text(layer.name), str(layer.unknowns), str(layer.equations), *ranks)
        console.print(table)
    for sentence in _write_sentences(found):
        print_line(console, sentence)
    console.print()


def _write_sentences(found: Inspection) -> list[str]:
    said = []
    if found.closed_form is not None:
        said.append(
            f"leaks by construction: {found.closed_form} is fully connected with a bias and reads "
            "the input, so one example comes back in closed form (analytic_fc)"
        )
    if found.texts is not None:
        said.append(found.texts.advice)
    elif found.metric is None:
        said.append(f"c(M), a count of unknowns layer by layer, does not apply: {found.outside}")
    elif found.metric.layers:
        said.append(found.metric.advice)
        if found.metric.forgetful:
            said.append(
                f"a ReLU behind {', '.join(found.metric.forgetful)} hides inputs that are not "
                "positive; counted ranks take them for known and are upper bounds"
            )
    if found.patches is not None:
        said.append(found.patches.advice)
    elif found.first is not None:
        said.append(_write_count(found.first))
    if found.maps is not None:
        said.append(found.maps.advice)
    return said


def _write_count(first: FirstLayerCount) -> str:
    each = ", ".join(
        f"{'enough' if count.enough else 'too few'} for a batch of {count.batch} "
        f"({'no number is enough' if count.needed is None else f'{count.needed} needed'})"
        for count in first.counts
    )
    return (
        f"equations of layer {first.name!r} alone to compute its inputs: its {first.width} "
        f"{first.kind} are {each}"
    )


def _list_numbers(found: Inspection) -> dict[str, object]:
    plain = asdict(found)
    if found.texts is not None:
        plain["texts"] = {**asdict(found.texts), "tokens": found.texts.tokens}
    if found.metric is not None:
        layers = [{**asdict(r), "deficiency": r.deficiency} for r in found.metric.layers]
        plain["metric"] = {
            "value": found.metric.value,
            "rounded": round(found.metric.value),
            "layers": layers,
            "forgetful": list(found.metric.forgetful),
            "advice": found.metric.advice,
        }
    return plain


def vet_model(asked: Vet, console: Console) -> int:
    """Vet a network, print the verdict and return the exit code."""
    fitted: dict[str, object] = {"domain": _read_domain(asked.shape)}
    own = None
    if asked.data is not None:
        dataset = find_dataset(asked.data)
        own = dataset.batch(min(asked.people, len(dataset)))
        if asked.shape is None:
            fitted = {"domain": dataset.domain, "classes": dataset.classes}
    table = read_network(asked.model, asked.option)
    with explain_errors(asked.model):
        task = build(table.pop("name"), options=table, fitted=fitted)
        _require_rows_as_rows(task)
        verdict = vet(task if asked.weights is None else load_weights(task, asked.weights), own)
    if asked.form == "json":
        plain = {"judgement": verdict.judgement, **asdict(verdict)}
        print_line(console, json.dumps(plain, indent=1))
    else:
        _print_judgement(verdict, console)
    return EXIT[verdict.judgement]


def _print_judgement(verdict: VettingVerdict, console: Console) -> None:
    title = Text(verdict.model, style="bold")
    title.append(f"   {verdict.judgement}", style=STYLES[verdict.judgement])
    console.print(title)
    for found in verdict.findings:
        line = Text(f"{found.level}: ", style=STYLES[found.level])
        line.append(found.reason, style="default")
        console.print(line, highlight=False)
    if not verdict.alarms:
        said = (
            "no sign of manipulation was found, but trap weights and weights optimised to leak "
            "show none of the signs looked for"
        )
        console.print(said)
    console.print(f"looked for {list_words(verdict.checks)}", style="dim", highlight=False)
    left = [name for name in ON_DATA if name not in verdict.checks]
    if left:
        least = max(ON_DATA[name][1] for name in left)
        words = f"not for {list_words(left)}, which takes --data with {least} examples"
        console.print(words, style="dim", highlight=False)
