"""Specs written from options: `seepage new`, and `seepage audit --model` and `--capture`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from seepage.attacks._applicability import Applicability, check_applicability, explain_refusals
from seepage.audit._captured_data import CapturedData, read_capture
from seepage.audit._spec import build_spec
from seepage.audit._spec_entries import (
    explain_errors,
    read_chains,
    read_defenses,
    read_model,
    read_words,
)
from seepage.audit._spec_text import SpecSource, write_entry, write_toml
from seepage.audit._words import count_noun
from seepage.capture._consistency import consistency
from seepage.cli._commands import InsteadOfSpec, New
from seepage.cli._console import print_line, write_file
from seepage.cli._model_commands import read_network, read_shape
from seepage.core._construct import construct
from seepage.core.errors import InvalidValue, NotApplicable, SeepageError

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
    write_file(out, text)
    named = shlex.quote(str(out))
    print_line(
        console,
        f"{out}: {count_noun(len(built.cases), 'case')}, controls included\n"
        f"what it costs: seepage audit {named} --dry-run\nto run it: seepage audit {named}",
    )


# Updates that one audit takes at most.
MOST_CAPTURES = 1_000
# People of a data set that are attacked, by default.
_PEOPLE = 4


def model_spec(given: InsteadOfSpec, *, device: str) -> SpecSource:
    """Write down an audit of one network on one data set by `auto`."""
    batch_size = given.batch_size or 1
    people = given.people or max(_PEOPLE, batch_size)
    data = {**read_words(given.data or "", "data"), "people": people, "batch_size": batch_size}
    network = read_network(given.model or "", given.option)
    scenario = _write_scenario(data, network, given, read_chains(given.defense))
    spec = {"title": f"{given.model} on {given.data}", "scenario": scenario}
    return _write_spec(spec, "--model", device)


def _write_spec(
    spec: Mapping[str, Any], option: str, device: str, *, remark: str = ""
) -> SpecSource:
    note = f"# Written by seepage audit {option}; --resume and --workers need nothing else.\n"
    return SpecSource("", note + remark + write_toml(spec), device)


def _write_scenario(
    data: Mapping[str, Any],
    network: Mapping[str, Any],
    given: InsteadOfSpec,
    chains: list[list[dict[str, Any]]],
) -> dict[str, Any]:
    """One data set or capture, attacked by `auto`."""
    steps = {} if given.steps is None else {"budget": given.steps}
    auto = {"name": "auto", "effort": given.effort or "quick", **steps}
    defenses = {} if chains == [[]] else {"defenses": chains}
    return {"data": data, "models": network, **defenses, "attacks": [auto]}


def _read_assumed(asked: InsteadOfSpec) -> list[list[dict[str, Any]]]:
    """The defense that is assumed behind an update: one chain."""
    given = asked.defense or ["none"]
    if len(given) > 1:
        raise InvalidValue(
            "expected one --defense with --capture, the one that the client used, with links "
            f"joined by +, got {len(given)}"
        )
    return read_chains(given)[-1:]


def _federation_spec(
    folder: Path, given: InsteadOfSpec, *, device: str, console: Console
) -> SpecSource:
    """Write down an audit of every capture in a folder, each named by its client and round.

    Prints which files are left out, and why: files that are no captures, or do not fit the model.
    """
    if given.truth is not None and not given.truth.is_dir():
        raise InvalidValue(
            f"expected --truth to name a folder, as --capture does, got {str(given.truth)!r}"
        )
    scenarios, places, named = [], set[tuple[str, int]](), True
    assumed = _read_assumed(given)
    read: list[dict[str, Any]] = []
    for file in _list_captures(folder):
        truth = None if given.truth is None else _find_truth(given.truth, file)
        one = replace(given, capture=file, truth=truth)
        try:
            held, network = _read_capture(file, one)
            place = astuple(held.sent)
            if place in places:
                raise InvalidValue(
                    f"round {place[1]} of client {place[0]} is in another file already"
                )
            found = _find_attacks(held, network, assumed)
            if not found.chosen:
                raise NotApplicable(explain_refusals(found.refused).splitlines()[0])
        except SeepageError as error:
            print_line(console, f"{file.name} is left out: {error}", style="dim")
            continue
        places.add(place)
        named &= bool(held.captured.capture.setting.client)
        name = "client {}, round {}".format(*place)
        data = {**_list_data(file, one), "name": name}
        read.append(data)
        scenarios.append((place, _write_scenario(data, network, given, assumed)))
    if not scenarios:
        raise InvalidValue(
            f"expected captures in {folder}, as sp.capture.save writes them, for the model "
            f"{given.model}, found none that can be audited"
        )
    if given.truth is not None and not any("truth" in data for data in read):
        raise InvalidValue(
            f"expected files in {given.truth} with the names of captures, such as "
            f"{Path(read[0]['capture']).name}, found none"
        )
    clients, rounds = ({place[axis] for place in places} for axis in (0, 1))
    # Files that record no client may be of one.
    senders = count_noun(len(clients), "client") if named else count_noun(len(places), "update")
    title = f"Federation {folder.name}: {senders}, {count_noun(len(rounds), 'round')}"
    ordered = [scenario for _, scenario in sorted(scenarios, key=lambda pair: pair[0])]
    return _write_spec({"title": title, "scenario": ordered}, "--capture", device)


def _list_captures(folder: Path) -> list[Path]:
    """Files of captures in a folder; links are not followed out of it."""
    files = [file for file in sorted(folder.glob("*.safetensors")) if not file.is_symlink()]
    if len(files) > MOST_CAPTURES:
        raise InvalidValue(
            f"expected {MOST_CAPTURES} captures or fewer in {folder}, got {len(files)}; audit some "
            "of them at a time"
        )
    return files


def _find_truth(folder: Path, capture: Path) -> Path | None:
    """The file of the private batch with the name of the capture, if there is one."""
    names = (folder / capture.with_suffix(suffix).name for suffix in (".safetensors", ".npz"))
    return next((path for path in names if path.is_file()), None)


def capture_spec(file: Path, given: InsteadOfSpec, *, device: str, console: Console) -> SpecSource:
    """Read the capture, check that some attack fits, and write it all down as a spec.

    Prints why other attacks do not fit. An update whose numbers contradict its file is refused
    unless `form` insists.
    """
    if file.is_dir():
        return _federation_spec(file, given, device=device, console=console)
    chains = _read_assumed(given)
    held, network = _read_capture(file, given)
    found = _find_attacks(held, network, chains)
    for name, reason in found.refused.items():
        print_line(console, f"{name} does not apply: {reason}", style="dim")
    if not found.chosen:
        reason = explain_refusals(found.refused).splitlines()[0]
        raise NotApplicable(f"{file}: {reason}")
    assumed = _describe_range(held)
    print_line(console, assumed, style="dim")
    scenario = _write_scenario(_list_data(file, given), network, given, chains)
    spec = {"title": f"Captured update {file.name}", "scenario": scenario}
    return _write_spec(spec, "--capture", device, remark=f"# {assumed}\n")


def _find_attacks(
    held: CapturedData, network: dict[str, Any], chains: list[list[dict[str, Any]]]
) -> Applicability:
    """Find out which attacks fit the update behind the defense that is assumed."""
    [defense] = read_defenses(chains)
    return check_applicability(held.captured.observe(read_model(network, held), defense=defense))


def _read_capture(file: Path, given: InsteadOfSpec) -> tuple[CapturedData, dict[str, Any]]:
    """Read a capture and check that it fits the network; return it with the network's table."""
    data = _list_data(file, given)
    # The choice of attacks must not depend on the truth.
    held = construct("a capture", read_capture, {k: v for k, v in data.items() if k != "truth"})
    network = read_network(given.model or "", given.option)
    task = read_model(network, held)
    with explain_errors(task.name):
        _ = task.classes  # a network for other inputs says so here
    checked = consistency(held.captured.capture, task)
    if checked.contradicts and given.form is None:
        raise InvalidValue(
            f"{file} is {checked.words}, or audit it with --form {checked.found} to read "
            f"it as that, or with --form {checked.declared} to insist"
        )
    return held, network


def _describe_range(held: CapturedData) -> str:
    """Say which range of inputs is assumed; the truth has no part in it."""
    low, high = held.domain.bounds
    declared = "bounds" in held.captured.capture.setting.plain()
    source = "as the capture declares" if declared else "since the capture declares no other bounds"
    return f"inputs are assumed to lie in [{low:g}, {high:g}], {source}"


def _list_data(file: Path, given: InsteadOfSpec) -> dict[str, Any]:
    data: dict[str, Any] = {"capture": str(file)}
    if given.truth is not None:
        data["truth"] = str(given.truth)
    if given.labels is not None:
        data["labels"] = _read_labels(given.labels)
    if given.shape is not None:
        data["shape"] = list(read_shape(given.shape))
    for key in ("form", "batch_size", "public"):
        if getattr(given, key) is not None:
            data[key] = getattr(given, key)
    return data


def _read_labels(written: str) -> list[int]:
    try:
        return [int(label) for label in written.split(",")]
    except ValueError:
        raise InvalidValue(
            "expected --labels as class numbers such as 3,5,5, got something else"
        ) from None
