"""`seepage audit --capture`: an update from elsewhere, as a spec like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from seepage.attacks.applicability import ApplicableAttack, check_applicability
from seepage.audit.spec_entries import explain_errors, read_model
from seepage.audit.spec_text import SpecSource, write_toml
from seepage.audit.targets import read_capture
from seepage.capture import Consistency, consistency
from seepage.cli.inspect_command import option, sizes
from seepage.core.construct import construct
from seepage.core.errors import InvalidValue, NotApplicable

# Of each search, if nobody says.
STEPS = 1_000


@dataclass(frozen=True, kw_only=True)
class CaptureRequest:
    """The options of `seepage audit` that go with `--capture`.

    Args:
        file: The captured update.
        model: The network, of the zoo or as `package.module:factory`.
        options: Arguments of the network, as `key=value`.
        truth: A file with the private batch, for scoring alone.
        labels: Known labels, separated by commas.
        form: What the update is, in spite of what the file says.
        shape: Of one input, where the file does not say.
        batch_size: Number of inputs, where the file does not say.
        steps: Of each search.
    """

    file: Path
    model: str
    options: Sequence[str] = ()
    truth: Path | None = None
    labels: str | None = None
    form: str | None = None
    shape: str | None = None
    batch_size: int | None = None
    steps: int = STEPS


def capture_spec(request: CaptureRequest, *, device: str, console: Console) -> SpecSource:
    """Read the capture, choose attacks that fit, and write it all down as a spec.

    Says which attacks were chosen and why others were not, and whether the numbers are what the
    file says they are; a contradiction is refused unless `form` insists.
    """
    data = _data(request)
    # Without the truth: what attacks are chosen must not depend on it.
    held = construct("a capture", read_capture, {k: v for k, v in data.items() if k != "truth"})
    network: dict[str, Any] = {"name": request.model, **dict(map(option, request.options))}
    task = read_model(network, held)
    with explain_errors(task.name):
        _ = task.classes  # a network for other inputs says so here
    _require_consistent(request, consistency(held.captured.capture, task))
    found = check_applicability(held.captured.observe(task), steps=request.steps)
    for name, reason in found.refused.items():
        console.print(f"{name} does not apply: {reason}", style="dim", markup=False, soft_wrap=True)
    if not found.chosen:
        raise NotApplicable(f"no attack fits {request.file}: {'; '.join(found.refused.values())}")
    written = write_toml(
        {
            "title": f"Captured update {request.file.name}",
            "scenario": {
                "data": data,
                "models": network,
                "attacks": [_attack(option) for option in found.chosen],
            },
        }
    )
    note = "# Written by seepage audit --capture; --resume and --workers need nothing else.\n"
    return SpecSource(f"the spec of {request.file.name}", note + written, device)


def _data(request: CaptureRequest) -> dict[str, Any]:
    data: dict[str, Any] = {"capture": str(request.file)}
    if request.truth is not None:
        data["truth"] = str(request.truth)
    if request.labels is not None:
        data["labels"] = _labels(request.labels)
    if request.shape is not None:
        data["shape"] = list(sizes(request.shape))
    for key in ("form", "batch_size"):
        if getattr(request, key) is not None:
            data[key] = getattr(request, key)
    return data


def _labels(written: str) -> list[int]:
    try:
        return [int(label) for label in written.split(",")]
    except ValueError:
        raise InvalidValue(
            f"expected --labels as class numbers such as 3,5,5, got {written!r}"
        ) from None


def _require_consistent(request: CaptureRequest, found: Consistency) -> None:
    if found.contradicts and request.form is None:
        raise InvalidValue(
            f"{request.file} is {found.words}, or audit it with --form {found.found} to read it as "
            f"that, or with --form {found.declared} to insist"
        )


def _attack(option: ApplicableAttack) -> dict[str, Any]:
    infers = {"infer_labels": True} if option.infer_labels else {}
    return {"name": option.name, **option.options, **infers}
