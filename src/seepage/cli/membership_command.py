"""`seepage membership`: who was in the batch behind captured updates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from seepage import __version__
from seepage.audit.captured_data import read_capture
from seepage.audit.spec_entries import explain_errors, read_model
from seepage.cli.options import read_option
from seepage.cli.report_command import print_line
from seepage.core import Observation
from seepage.core.construct import construct
from seepage.core.errors import InvalidValue
from seepage.data.dataset import Dataset
from seepage.data.load import load
from seepage.defenses.clip import AddGaussian
from seepage.inference.membership import LEVEL, Membership, membership
from seepage.rehearsal.public_data import PublicData


@dataclass(frozen=True, kw_only=True)
class MembershipRequest:
    """The options of `seepage membership`, see its help."""

    captures: Sequence[Path]
    model: str
    candidates: str
    public: str
    option: Sequence[str] = ()
    noise: float | None = None
    batch_size: int | None = None


def answer_membership(request: MembershipRequest, *, as_json: bool, console: Console) -> None:
    """Test every candidate and print what was found."""
    seen = [_observe(path, request) for path in request.captures]
    candidates, public = load(request.candidates), load(request.public)
    for data in (candidates, public):
        _require_same_inputs(data, seen[0])
    people = candidates.take(range(len(candidates)))
    found = membership(seen, people, public=PublicData(public.inputs, public.labels))
    if as_json:
        print_line(console, json.dumps(_plain(found, request), indent=1))
    else:
        print_line(console, str(found))


def _observe(path: Path, request: MembershipRequest) -> Observation:
    given: dict[str, Any] = {"capture": str(path)}
    if request.batch_size is not None:
        given["batch_size"] = request.batch_size
    held = construct("a capture", read_capture, given)
    task = read_model({"name": request.model, **dict(map(read_option, request.option))}, held)
    with explain_errors(task.name):
        _ = task.classes
    defense = None if request.noise is None else AddGaussian(request.noise)
    return held.captured.observe(task, defense=defense)


def _require_same_inputs(data: Dataset, seen: Observation) -> None:
    expected = tuple(seen.task.domain.shape)
    if tuple(data.domain.shape) != expected:
        raise InvalidValue(
            f"expected inputs of shape {expected}, as {seen.task.name} reads them, got "
            f"{tuple(data.domain.shape)} in {data.name}"
        )


def _plain(found: Membership, request: MembershipRequest) -> dict[str, Any]:
    power = found.power
    return {
        "seepage": __version__,
        "captures": [path.name for path in request.captures],
        "model": request.model,
        "test": list(found.test),
        "strangers": found.strangers,
        "power": None
        if power is None
        else {
            "false_positive_rate": LEVEL,
            "found": power.successes,
            "of": power.trials,
            "interval": [power.low, power.high],
        },
        "notes": list(found.notes),
        "candidates": [
            {"candidate": number, "p_value": p, "likelihood_ratio": ratio, "score": score}
            for number, (p, ratio, score) in enumerate(
                zip(
                    found.p_values.tolist(),
                    found.likelihood_ratios.tolist(),
                    found.scores.tolist(),
                    strict=True,
                )
            )
        ],
    }
