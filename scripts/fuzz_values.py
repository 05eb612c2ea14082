"""Files whose values were changed, not their bytes: records, plans, specs, dossiers, commands.

A changed byte seldom survives a checksum. Here numbers, words and lists of a whole file are put in
each other's places, or replaced by what nobody expects, and then the file is sealed again.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console

import seepage as sp
from seepage.audit import SpecSource, build_spec, save_evidence
from seepage.audit._folder import find_damage
from seepage.audit._plan import FORMAT, PLAN, Plan
from seepage.audit._spec_text import write_toml
from seepage.cli import main as run_command
from seepage.cli._commands import Report
from seepage.cli._report_command import write_report
from seepage.core._schema import to_plain
from seepage.core._whole_file import checksum, seal, unpack, unseal
from seepage.core.errors import InvalidValue
from seepage.inference import AttributeComparison, EpsilonAudit
from seepage.inference._detection import Detection
from seepage.inference._membership import Membership
from seepage.numerics._significance import Rate
from seepage.report._dossier import _find_digest, make_dossier, read_dossier
from seepage.report._dossier_sources import read_source
from seepage.report.page._dossier_page import dossier_page

Plain = Any
Change = Callable[[bytes, random.Random], bytes]
# Stands for brackets inside each other, deeper than Python can write them.
_DEEP = "@deep@"
_ODD: tuple[Plain, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 10**30, 10**400, -(10**30)),
    *(0.5, 1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *([], {}, [[]], [None], [1, 2, 3], ["x"], {"": None}, {"name": "x", "arguments": {}}),
    *("", " ", "inf", "-inf", "nan", "x", "x" * 5_000, "a\nb", "\x1b[2J", "\0", "\u202e"),
    *("\ud800", "../x", "<script>", "1e5", "none", "psnr", _DEEP),
)
_ODD_TEXT = (
    *("0", "-1", "1e999", "nan", "None", "True", "[]", "()", "{}", '""', "'", '"', "[[[[", "}"),
    *("9" * 30, "9" * 5_000, "\u00b2", "x" * 5_000, ",", "=", ":", "+", "..", "/", "~x", "\n"),
    *("\udcff", "\x1b[2J", "hidden=", "=3", "none", "auto", "Sign", "mlp", "1x1", "0x0", "\u0660"),
)


def change_values(plain: Plain, rng: random.Random) -> Plain:
    """Replace, remove or exchange one to three values of plain data; the data itself is changed."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_list_places(plain))
        if not places:
            break
        holder, key = rng.choice(places)
        kind = rng.random()
        if kind < 0.1:
            del holder[key]
        elif kind < 0.2:
            other, place = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[place]))
        elif kind < 0.3 and isinstance(holder[key], list) and holder[key]:
            holder[key] = holder[key] * rng.choice((2, 50))
        elif kind < 0.4 and isinstance(holder[key], int | float):
            holder[key] = rng.choice((-holder[key], 2 * holder[key], holder[key] + 1, 0))
        else:
            holder[key] = rng.choice(_ODD)
        if isinstance(holder, dict) and rng.random() < 0.1:
            holder[rng.choice(("", "x", "\ud800", "x" * 5_000, "name"))] = rng.choice(_ODD)
    return plain


def _list_places(value: Plain) -> Iterator[tuple[Plain, Plain]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(items):
        yield value, key
        if isinstance(one, dict | list):
            yield from _list_places(one)


def _write(plain: Plain) -> bytes:
    return json.dumps(plain).replace(f'"{_DEEP}"', "[" * 5_000 + "]" * 5_000).encode()


def _change_json(data: bytes, rng: random.Random) -> bytes:
    return _write(change_values(json.loads(data), rng))


def _change_dossier(data: bytes, rng: random.Random) -> bytes:
    """Change values and write the digest that the changed dossier has."""
    plain = change_values(json.loads(data), rng)
    with contextlib.suppress(InvalidValue, AttributeError):
        plain["digest"] = _find_digest(plain) if rng.random() < 0.9 else plain.get("digest")
    return _write(plain)


def _change_command(data: bytes, rng: random.Random) -> bytes:
    """Change what stands behind the options of a command, which has a line for each."""
    lines = [line.split("\t") for line in data.decode().split("\n")]
    for _ in range(rng.choice((1, 1, 2))):
        valued = rng.choice([line for line in lines if len(line) > 1])
        letters, kind = valued[1], rng.random()
        start, end = sorted(rng.randrange(len(letters) + 1) for _ in range(2))
        if kind < 0.2:
            valued[1] = rng.choice(_ODD_TEXT)
        elif kind < 0.4:
            valued[1] = letters[:start] + letters[end:]
        elif kind < 0.8:
            valued[1] = letters[:start] + rng.choice(_ODD_TEXT) + letters[start:]
        else:
            valued[1] = letters[:start] + rng.choice(_ODD_TEXT) + letters[end:]
    return "\n".join("\t".join(line) for line in lines).encode(errors="surrogateescape")


def _run_command(path: Path) -> None:
    """Run a command without its output; what it says on the standard error is one sentence."""
    text = path.read_bytes().decode(errors="surrogateescape").replace("\0", "")
    words = [word for line in text.split("\n") for word in line.split("\t")]
    said = io.StringIO()
    out = str(path.parent / "out")
    with (
        mock.patch.object(sys, "argv", ["seepage", *words, "--out", out]),
        mock.patch.object(sys, "path", list(sys.path)),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(said),
    ):
        try:
            run_command()
        except SystemExit as ended:
            if ended.code == 2:
                raise InvalidValue(said.getvalue().rstrip("\n")) from None


def _write_evidence(place: Path) -> dict[str, bytes]:
    about = {"system": "an MLP", "data": "patients", "adversary": "the update"}
    yes = torch.ones(8, dtype=torch.bool)
    p_values = torch.linspace(0.001, 1, 8, dtype=torch.float64)
    found = Membership(p_values, 1 / p_values, -p_values, ("a test",), 199, Rate(48, 48))
    save_evidence(found, place / "members.json", **about)
    detection = Detection.of(found, torch.arange(8) < 4)
    save_evidence(detection, place / "detection.json", **about)
    save_evidence(AttributeComparison("x", yes, ~yes, ~yes), place / "column.json", **about)
    promise = EpsilonAudit(2.0, 1e-5, 0.95, 1.0, 0.0, (0.0, 0.0), 200, 1000)
    save_evidence(promise, place / "epsilon.json", **about)
    names = ("members", "detection", "column", "epsilon")
    return {f"{name}.json": (place / f"{name}.json").read_bytes() for name in names}


SPEC: Plain = {
    "title": "Values",
    "seeds": [0],
    "metrics": ["psnr", "label_accuracy"],
    "controls": True,
    "timeout": 1000,
    "scenario": [
        {
            "data": {"name": "digits", "people": 2, "batch_size": 2, "pixels": 8, "start": 3},
            "models": [{"name": "mlp", "hidden": [4], "activation": "sigmoid", "seed": 1}],
            "locals": {"name": "FedAvg", "lr": 0.1, "steps": 2},
            "threats": {"knows_labels": False, "knows_defense": True},
            "attacks": [
                {"name": "inverting_gradients", "steps": 2, "restarts": 1, "infer_labels": True}
            ],
            "defenses": [[], [{"name": "Prune", "ratio": 0.5}, {"name": "AddGaussian", "std": 1}]],
        },
        {
            "data": {"name": "voters", "people": [3, 7]},
            "models": {"name": "mlp", "hidden": [4], "activation": "sigmoid"},
            "threats": {"knows_labels": True},
            "attacks": [{"name": "analytic_fc"}, {"name": "tableak", "steps": 2, "members": 2}],
            "bounds": [{"name": "CramerRao"}],
            "defenses": [[{"name": "AddGaussian", "std": 0.01}]],
        },
    ],
}
_COMMANDS = {
    "model": "audit\n--model\tmlp:hidden=8,4,activation=tanh\n--data\tdigits:pixels=8\n"
    "--defense\tPrune:ratio=0.9+Sign\n--people\t2\n--batch-size\t1\n--dry-run",
    "gates": "audit\n--model\tmlp\n--data\tvoters\n-o\thidden=4,\n--fail-above\tpsnr=20\n"
    "--steps\t3\n--timeout\t9\n--dry-run",
    "sweep": "sweep\n--model\tmlp:hidden=4,4\n--data\tvoters\n--noise\t0,0.1\n"
    "--attack\tinverting_gradients:steps=2,restarts=1\n--knows-labels\n--dry-run",
    "budget": "sweep\n--model\tmlp:hidden=4,4\n--epsilon\t1,4\n--attack\tanalytic_fc\n"
    "--people\t2\n--batch-size\t2\n--dry-run",
}
_FORMS = ("html", "markdown", "csv", "json", "pivot", "latex", "svg", "pdf", "junit", "sarif")


def list_value_readers(place: Path) -> dict[str, tuple[Callable[[Path], object], Any, Change]]:
    """Write the files to begin with; list what reads each kind, the files, and their changes."""
    audit = place / "values"
    # A timeout takes processes of its own.
    sp.audit.run({k: v for k, v in SPEC.items() if k != "timeout"}, audit, device="cpu")
    cases = {file.name: file.read_bytes() for file in (audit / "cases").glob("*.safetensors")}
    whole = Plan.read(audit)
    plan = to_plain(whole)

    def put_record(name: str, text: str) -> None:
        data = cases[name]
        words = {**unseal(data), "record": text}
        (audit / "cases" / name).write_bytes(seal(unpack(data)[0], words))

    def put_plan(text: str) -> None:
        beginning = f'{{"seepage audit": {FORMAT}, "sha256": "{checksum(text.encode())}", "plan": '
        (audit / PLAN).write_text(f"{beginning}{text}}}\n")

    def write_reports(text: bytes) -> None:
        """Write the dossier and one of the reports, which differs from file to file."""
        console = Console(file=io.StringIO(), width=100)
        with contextlib.redirect_stdout(io.StringIO()):
            form = random.Random(text).choice(_FORMS)
            write_report(Report(directories=(audit,), form=form), console)
            write_dossier_of(audit)

    def write_dossier_of(*paths: Path, against: Path | None = None) -> Plain:
        old = None if against is None else read_dossier(against)
        sources = [read_source(path) for path in paths]
        made = make_dossier(sources, title="T", version="1", written="now", against=old)
        dossier_page(made).encode()
        json.dumps(made, ensure_ascii=False).encode()
        return made

    def read_record(path: Path) -> None:
        text, name = path.read_text("utf-8"), path.name.removesuffix(".json")
        put_record(name, text)
        try:
            if damage := find_damage(audit):
                raise InvalidValue(damage[0])
            write_reports(text.encode())
        finally:
            (audit / "cases" / name).write_bytes(cases[name])

    def read_plan(path: Path) -> None:
        put_plan(path.read_text("utf-8"))
        try:
            write_reports(path.read_bytes())
        finally:
            whole.write(audit)

    def read_spec(path: Path) -> object:
        try:
            plain = json.loads(path.read_bytes())
        except RecursionError as error:
            raise InvalidValue("no JSON") from error
        if not isinstance(plain, dict):
            raise InvalidValue("no spec")
        return build_spec(SpecSource("the spec", write_toml(plain))).cases

    evidence = _write_evidence(place)
    column = place / "column.json"
    dossier = write_dossier_of(audit, column, place / "epsilon.json")
    records = {f"{name}.json": unseal(data)["record"].encode() for name, data in cases.items()}
    commands = {name: text.encode() for name, text in _COMMANDS.items()}
    return {
        "values": (read_record, records, _change_json),
        "sealed plan": (read_plan, {"plan.json": _write(plan)}, _change_json),
        "mapping": (read_spec, {"spec.json": _write(SPEC)}, _change_json),
        "evidence": (write_dossier_of, evidence, _change_json),
        "dossier": (
            lambda path: write_dossier_of(audit, column, against=path),
            {"dossier.json": _write(dossier)},
            _change_dossier,
        ),
        "command": (_run_command, commands, _change_command),
    }
