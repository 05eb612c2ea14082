"""`seepage inspect`: what an architecture gives away, before anything is shared."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage.audit.spec_entries import explain_errors
from seepage.core import Domain
from seepage.core.errors import InvalidValue
from seepage.domains import CIFAR10, Image, Signal
from seepage.exposure.inspection import FirstLayerCount, Inspection, inspection
from seepage.zoo import build

# Numbers in one input: some hundred times as many as a photograph has.
LARGEST = 100_000_000


def domain_of(shape: str | None) -> Domain:
    """The space of inputs of this shape, written as `3x32x32` or `1x140`; None for CIFAR images."""
    if shape is None:
        return CIFAR10
    read = sizes(shape)
    return {2: Signal, 3: Image}[len(read)](read)


def sizes(shape: str) -> tuple[int, ...]:
    """The shape of one input, from what was written on the command line.

    Example:
        >>> sizes("3x32x32")
        (3, 32, 32)
    """
    read = tuple(int(size) for size in shape.split("x") if size.isdigit())
    if len(read) not in (2, 3) or shape.count("x") != len(read) - 1:
        raise InvalidValue(
            f"expected --shape as channels and sizes, such as 3x32x32 or 1x140, got {shape!r}"
        )
    if (entries := prod(read)) > LARGEST:
        raise InvalidValue(
            f"expected --shape of {LARGEST:,} numbers or fewer, got {shape}, which are {entries:,}"
        )
    return read


def option(written: str) -> tuple[str, Any]:
    """A key and its value, written as in a spec; a bare word is a string."""
    key, separator, value = written.partition("=")
    if not separator:
        raise InvalidValue(f"expected --option as key=value, got {written!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def inspect_models(
    names: Sequence[str],
    *,
    options: Sequence[str],
    shape: str | None,
    numerical: bool,
    as_json: bool,
    console: Console,
) -> None:
    """Inspect each network and print what was found.

    Args:
        names: Of the zoo, or `package.module:factory`.
        options: Arguments of the factories, as `key=value`.
        shape: Of one input, as `3x32x32` or `1x140`; None for CIFAR images.
        numerical: Compute ranks instead of counting them.
        as_json: Print one JSON list instead of tables.
        console: Where to print.
    """
    arguments = {"domain": domain_of(shape), **dict(map(option, options))}
    found = []
    for name in names:
        with explain_errors(name):
            found.append(inspection(build(name, options=arguments), numerical=numerical))
        if not as_json:
            _show(found[-1], console)
    if as_json:
        text = json.dumps([_plain(one) for one in found], indent=1)
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _show(found: Inspection, console: Console) -> None:
    metric = found.metric
    title = Text(found.model, style="bold")
    if metric is not None:
        title.append(f"   c(M) = {round(metric.value)}")
    console.print(title)
    if metric is not None and metric.layers:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("layer")
        for column in ("unknowns", "equations", "rank", "deficiency"):
            table.add_column(column, justify="right")
        for layer in metric.layers:
            numbers = (layer.unknowns, layer.equations, layer.rank, layer.deficiency)
            table.add_row(Text(layer.name), *map(str, numbers))
        console.print(table)
    for sentence in _sentences(found):
        console.print(sentence, markup=False, highlight=False)
    console.print()


def _sentences(found: Inspection) -> list[str]:
    said = []
    if found.closed_form is not None:
        said.append(
            f"leaks by construction: {found.closed_form} is fully connected with a bias and reads "
            "the input, so one example comes back in closed form (analytic_fc)"
        )
    if found.metric is None:
        said.append(f"c(M) does not apply: {found.outside}")
    elif found.metric.layers:
        said.append(found.metric.advice)
        if found.metric.forgetful:
            said.append(
                f"a ReLU behind {', '.join(found.metric.forgetful)} hides inputs that are not "
                "positive; counted ranks take them for known and are upper bounds"
            )
    if found.first is not None:
        said.append(_counted(found.first))
    return said


def _counted(first: FirstLayerCount) -> str:
    each = ", ".join(
        f"{'enough' if count.enough else 'too few'} for a batch of {count.batch} "
        f"({'no number is enough' if count.needed is None else f'{count.needed} needed'})"
        for count in first.counts
    )
    return f"counting {first.name} alone, its {first.width} {first.kind} are {each}"


def _plain(found: Inspection) -> dict[str, object]:
    plain = asdict(found)
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
