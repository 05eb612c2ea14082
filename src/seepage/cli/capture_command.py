"""`seepage audit --capture` and `--model --data`: options instead of a spec, written as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from seepage.attacks.applicability import check_applicability
from seepage.audit.captured_data import CapturedData, read_capture
from seepage.audit.spec_entries import explain_errors, read_model
from seepage.audit.spec_text import SpecSource, write_toml
from seepage.capture.consistency import consistency
from seepage.cli.model_commands import read_option, read_shape
from seepage.cli.report_command import print_line
from seepage.core.construct import construct
from seepage.core.errors import InvalidValue, NotApplicable

# People of a data set that are attacked, by default.
_PEOPLE = 4


@dataclass(frozen=True, kw_only=True)
class CaptureRequest:
    """The options of `seepage audit` that go with `--capture`, see its help."""

    file: Path
    model: str
    option: Sequence[str] | None = None
    truth: Path | None = None
    labels: str | None = None
    form: str | None = None
    shape: str | None = None
    batch_size: int | None = None
    public: str | None = None
    effort: str = "quick"
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The options of `seepage audit` that go with `--model` and `--data`, see its help."""

    model: str
    data: str
    option: Sequence[str] | None = None
    people: int | None = None
    batch_size: int | None = None
    effort: str = "quick"
    steps: int | None = None


def model_spec(request: ModelRequest, *, device: str) -> SpecSource:
    """Write down an audit of one network on one data set by `auto`."""
    batch_size = request.batch_size or 1
    people = request.people or max(_PEOPLE, batch_size)
    data = {"name": request.data, "people": people, "batch_size": batch_size}
    written = write_toml(
        {
            "title": f"{request.model} on {request.data}",
            "scenario": {
                "data": data,
                "models": _list_network(request),
                "attacks": [_write_auto(request)],
            },
        }
    )
    note = "# Written by seepage audit --model; --resume and --workers need nothing else.\n"
    return SpecSource(f"the spec of {request.model} on {request.data}", note + written, device)


def _list_network(request: ModelRequest | CaptureRequest) -> dict[str, Any]:
    return {"name": request.model, **dict(map(read_option, request.option or ()))}


def _write_auto(request: ModelRequest | CaptureRequest) -> dict[str, Any]:
    steps = {} if request.steps is None else {"budget": request.steps}
    return {"name": "auto", "effort": request.effort, **steps}


def capture_spec(request: CaptureRequest, *, device: str, console: Console) -> SpecSource:
    """Read the capture, check that some attack fits, and write it all down as a spec.

    Prints why other attacks do not fit. An update whose numbers contradict its file is refused
    unless `form` insists.
    """
    data = _list_data(request)
    # The choice of attacks must not depend on the truth.
    held = construct("a capture", read_capture, {k: v for k, v in data.items() if k != "truth"})
    network = _list_network(request)
    task = read_model(network, held)
    with explain_errors(task.name):
        _ = task.classes  # a network for other inputs says so here
    checked = consistency(held.captured.capture, task)
    if checked.contradicts and request.form is None:
        raise InvalidValue(
            f"{request.file} is {checked.words}, or audit it with --form {checked.found} to read "
            f"it as that, or with --form {checked.declared} to insist"
        )
    found = check_applicability(held.captured.observe(task))
    for name, reason in found.refused.items():
        print_line(console, f"{name} does not apply: {reason}", style="dim")
    if not found.chosen:
        raise NotApplicable(f"no attack fits {request.file}: {'; '.join(found.refused.values())}")
    written = write_toml(
        {
            "title": f"Captured update {request.file.name}",
            "scenario": {
                "data": data,
                "models": network,
                "attacks": [_write_auto(request)],
            },
        }
    )
    assumed = _describe_range(held)
    print_line(console, assumed, style="dim")
    note = "# Written by seepage audit --capture; --resume and --workers need nothing else.\n"
    text = f"{note}# {assumed}\n{written}"
    return SpecSource(f"the spec of {request.file.name}", text, device)


def _describe_range(held: CapturedData) -> str:
    """Say which range of inputs is assumed; the truth has no part in it."""
    low, high = held.domain.bounds
    declared = "bounds" in held.captured.capture.setting.plain()
    source = "as the capture declares" if declared else "since the capture declares no other bounds"
    return f"inputs are assumed to lie in [{low:g}, {high:g}], {source}"


def _list_data(request: CaptureRequest) -> dict[str, Any]:
    data: dict[str, Any] = {"capture": str(request.file)}
    if request.truth is not None:
        data["truth"] = str(request.truth)
    if request.labels is not None:
        data["labels"] = _read_labels(request.labels)
    if request.shape is not None:
        data["shape"] = list(read_shape(request.shape))
    for key in ("form", "batch_size", "public"):
        if getattr(request, key) is not None:
            data[key] = getattr(request, key)
    return data


def _read_labels(written: str) -> list[int]:
    try:
        return [int(label) for label in written.split(",")]
    except ValueError:
        raise InvalidValue(
            "expected --labels as class numbers such as 3,5,5, got something else"
        ) from None
