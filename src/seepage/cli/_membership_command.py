"""`seepage membership`: who was in the batch behind captured updates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from seepage.audit._captured_data import read_capture
from seepage.audit._evidence import InferenceResult, describe_evidence, save_evidence
from seepage.audit._folder import require_free
from seepage.audit._spec_entries import explain_errors, find_dataset, read_model
from seepage.cli._commands import Membership
from seepage.cli._console import print_line
from seepage.cli._model_commands import read_network
from seepage.core import Observation
from seepage.core._construct import construct
from seepage.core.errors import InvalidValue
from seepage.data._dataset import Dataset
from seepage.data._public_data import PublicData
from seepage.defenses._clip import AddGaussian
from seepage.inference._detection import Detection
from seepage.inference._membership import membership


def _require_other_file(out: Path, captures: Sequence[Path]) -> None:
    """Refuse a place for the result before minutes are spent on it."""
    require_free(out)
    if out.resolve() in [path.resolve() for path in captures]:
        raise InvalidValue(f"expected --out to name another file than the capture {str(out)!r}")


def answer_membership(asked: Membership, console: Console) -> None:
    """Test every candidate and print what was found."""
    if asked.out is not None:
        _require_other_file(asked.out, asked.captures)
    seen = [_observe(path, asked) for path in asked.captures]
    candidates, public = find_dataset(asked.candidates), find_dataset(asked.public)
    for data in (candidates, public):
        _require_same_inputs(data, seen[0])
    people = candidates.take(range(len(candidates)))
    if asked.members is not None and not 0 < asked.members < len(people):
        raise InvalidValue(
            f"expected --members between 1 and {len(people) - 1}, since there are {len(people)} "
            f"candidates and some must be no members, got {asked.members}"
        )
    found = membership(seen, people, public=PublicData(public.inputs, public.labels))
    told: InferenceResult = found
    if asked.members is not None:
        told = Detection.of(found, torch.arange(len(people)) < asked.members)
    about = _describe(asked, seen[0], candidates, public)
    if asked.out is not None:
        save_evidence(told, asked.out, **about)
    if asked.form == "json":
        plain = describe_evidence(told, **about)
        plain["captures"] = [path.name for path in asked.captures]
        print_line(console, json.dumps(plain, indent=1))
    else:
        print_line(console, str(found))
        if told is not found:
            print_line(console, str(told))


def _describe(
    asked: Membership, seen: Observation, candidates: Dataset, public: Dataset
) -> dict[str, Any]:
    """What a reader of the result must know."""
    rounds = len(asked.captures)
    noise = "" if asked.noise is None else f", Gaussian noise {asked.noise:g}"
    size = "" if seen.batch_size is None else f", batches of {seen.batch_size}"
    return {
        "system": " ".join([asked.model, *asked.option]) + size + noise,
        "data": f"{candidates.name}, {len(candidates)} candidates",
        "adversary": f"the network, the updates of {rounds} round{'s' * (rounds > 1)}, inputs and "
        f"labels of the candidates, and {len(public)} public inputs of {public.name}",
    }


def _observe(path: Path, asked: Membership) -> Observation:
    given: dict[str, Any] = {"capture": str(path)}
    if asked.batch_size is not None:
        given["batch_size"] = asked.batch_size
    held = construct("a capture", read_capture, given)
    task = read_model(read_network(asked.model, asked.option), held)
    with explain_errors(task.name):
        _ = task.classes
    defense = None if asked.noise is None else AddGaussian(asked.noise)
    return held.captured.observe(task, defense=defense)


def _require_same_inputs(data: Dataset, seen: Observation) -> None:
    expected = tuple(seen.task.domain.shape)
    if tuple(data.domain.shape) != expected:
        raise InvalidValue(
            f"expected inputs of shape {expected}, as {seen.task.name} reads them, got "
            f"{tuple(data.domain.shape)} in {data.name}"
        )
