"""Malformed records, databases and artifacts end in one sentence, never in a traceback."""

import io
import json
import random
import shutil
import sqlite3
from contextlib import suppress

import pytest
from rich.console import Console

import seepage as sp
from seepage.cli.commands import Report
from seepage.cli.report_command import write_report
from seepage.core.errors import SeepageError
from seepage.core.whole_file import checksum

SPEC = {
    "scenario": {
        "data": {"name": "digits", "people": 1, "pixels": 8},
        "models": {"name": "mlp", "hidden": [8], "activation": "sigmoid"},
        "threats": {"knows_labels": True},
        "attacks": [{"name": "inverting_gradients", "steps": 3, "restarts": 1}],
        "bounds": [{"name": "CramerRao"}],
        "defenses": [{"name": "AddGaussian", "std": 0.01}],
    }
}
ODD = [
    *(None, True, 0, -1, 1, 2**63, 10**30, 1e308, -1e308, 1e-320, 0.5, [], {}, [[]], [None]),
    *("", "inf", "nan", "x", "\x1b[2J", "\ud800", "../x", "\0", "<script>", "a" * 5000),
    *({"name": "x", "arguments": {}}, [1, 2, 3], ["x"], {"psnr": [1.0]}, {"m": {"psnr": [None]}}),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("fuzz") / "out"
    sp.audit.run(SPEC, out, device="cpu")
    return out


@pytest.fixture
def out(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")


def read(out, *forms):
    """Whether reports can be written; what stops them is one sentence."""
    try:
        for form in forms or ("markdown", "csv", "json", "html"):
            shown = Console(file=io.StringIO(), width=100)
            write_report(Report(directories=(out,), form=form), shown)
    except SeepageError as error:
        return "\n" in str(error) and pytest.fail(str(error))
    return True


def places(value):
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inside:
        yield value, key
        if isinstance(one, dict | list):
            yield from places(one)


def mutate(text, rng):
    """Put something odd into a record, or change some of its letters."""
    if rng.random() < 0.2:
        letters = list(text)
        for _ in range(rng.randint(1, 4)):
            letters[rng.randrange(len(letters))] = rng.choice('0123456789{}[]",:.-eE \\')
        return "".join(letters)
    plain = json.loads(text)
    for _ in range(rng.choice([1, 1, 2])):
        holder, key = rng.choice(list(places(plain)))
        if rng.random() < 0.2:
            del holder[key]
        elif type(holder[key]) in (int, float) and rng.random() < 0.5:
            holder[key] = rng.choice([0, -holder[key], 1, 2, 0.5, -1, 1e300])
        else:
            holder[key] = rng.choice(ODD)
    return json.dumps(plain)


@pytest.mark.parametrize("rounds", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_malformed_records_are_refused_in_one_sentence(out, rounds):
    rng, kept = random.Random(0), 0
    database = sqlite3.connect(out / "audit.sqlite")
    rows = database.execute("SELECT id, record FROM records").fetchall()

    def put(case, text):
        row = (text, checksum(text.encode()), case)
        database.execute("UPDATE records SET record = ?, sha256 = ? WHERE id = ?", row)
        database.commit()

    for number in range(rounds):
        case, text = rng.choice(rows)
        put(case, mutate(text, rng))
        kept += bool(read(out, *(() if number % 10 == 0 else ("markdown",))))
        put(case, text)
    database.close()
    assert read(out)
    assert rounds / 30 < kept < rounds / 2, "all were refused, or hardly any"


@pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["audit.sqlite", "artifacts"])
def test_damaged_databases_and_artifacts_are_refused_in_one_sentence(out, name, rounds):
    rng = random.Random(0)
    for _ in range(rounds):
        place = out / name
        path = rng.choice(sorted(place.iterdir())) if place.is_dir() else place
        data = path.read_bytes()
        spoilt = bytearray(data)
        for _ in range(rng.choice([1, 4, 64])):
            # The header of each page holds most of what can be wrong.
            at = rng.choice([rng.randrange(len(data)), rng.randrange(100)])
            spoilt[(at + 4096 * rng.randrange(9)) % len(data)] = rng.randrange(256)
        path.write_bytes(spoilt[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
        if name == "artifacts":  # as somebody would who wants it to be read
            accept(out, path)
        read(out, rng.choice(["markdown", "html"]))
        path.write_bytes(data)
        if name == "artifacts":
            accept(out, path)
    assert read(out)


def accept(out, path):
    with suppress(sqlite3.Error), sqlite3.connect(out / "audit.sqlite") as database:
        row = (checksum(path.read_bytes()), f"artifacts/{path.name}")
        database.execute("UPDATE files SET sha256 = ? WHERE path = ?", row)
    database.close()
