"""`seepage vet`: whether a received network looks honest, before an update is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from seepage.audit.spec_entries import explain_errors
from seepage.cli.inspect_command import domain_of, option
from seepage.core import Batch
from seepage.data import Dataset, load
from seepage.exposure import VettingVerdict, vet
from seepage.exposure.vet import ON_DATA, Judgement
from seepage.report.words import list_words
from seepage.zoo import build, load_weights

# As exit codes; 1 and 2 mean elsewhere that something failed or was badly asked for.
EXIT: Mapping[Judgement, int] = MappingProxyType({"clean": 0, "suspicious": 3, "malicious": 4})
STYLES: Mapping[str, str] = MappingProxyType(
    {"clean": "green", "exposed": "dim", "suspicious": "yellow", "malicious": "red"}
)


@dataclass(frozen=True, kw_only=True)
class ReceivedModel:
    """What was received, as the command line says it.

    Args:
        model: Of the zoo, or `package.module:factory`.
        options: Arguments of the factory, as `key=value`.
        weights: File of the weights that came; None for those the factory draws.
        shape: Of one input, as `3x32x32` or `1x140`; None for that of the data, or CIFAR images.
        data: Name of a data set of the client's own; None runs the checks of weights alone.
        people: How many of its examples to use.
    """

    model: str
    options: Sequence[str] = ()
    weights: Path | None = None
    shape: str | None = None
    data: str | None = None
    people: int = 16


def vet_model(received: ReceivedModel, *, as_json: bool, console: Console) -> int:
    """Vet a network, print the verdict and return the exit code."""
    dataset = None if received.data is None else load(received.data)
    with explain_errors(received.model):
        task = build(received.model, options=_arguments(received, dataset))
        if received.weights is not None:
            task = load_weights(task, received.weights)
        verdict = vet(task, _own(received, dataset))
    if as_json:
        plain = {"judgement": verdict.judgement, **asdict(verdict)}
        console.print(json.dumps(plain, indent=1), markup=False, highlight=False, soft_wrap=True)
    else:
        _show(verdict, console)
    return EXIT[verdict.judgement]


def _arguments(received: ReceivedModel, dataset: Dataset | None) -> dict[str, object]:
    fitted: dict[str, object] = {"domain": domain_of(received.shape)}
    if dataset is not None and received.shape is None:
        fitted = {"domain": dataset.domain, "classes": dataset.classes}
    return fitted | dict(map(option, received.options))


def _own(received: ReceivedModel, dataset: Dataset | None) -> Batch | None:
    return None if dataset is None else dataset.batch(min(received.people, len(dataset)))


def _show(verdict: VettingVerdict, console: Console) -> None:
    title = Text(verdict.model, style="bold")
    title.append(f"   {verdict.judgement}", style=STYLES[verdict.judgement])
    console.print(title)
    for found in verdict.findings:
        line = Text(f"{found.level}: ", style=STYLES[found.level])
        line.append(found.reason, style="default")
        console.print(line, highlight=False)
    if not verdict.alarms:
        console.print("nothing in the weights suggests that the server wants to read the update")
    console.print(f"looked for {list_words(verdict.checks)}", style="dim", highlight=False)
    left = [name for name in ON_DATA if name not in verdict.checks]
    if left:
        least = max(ON_DATA[name][1] for name in left)
        words = f"not for {list_words(left)}, which takes --data with {least} examples"
        console.print(words, style="dim", highlight=False)
