"""Malformed records, plans and tensors end in one sentence, never in a traceback."""

import io
import json
import random
import re
import shutil

import pytest
from rich.console import Console

import seepage as sp
from seepage.audit._folder import find_damage
from seepage.cli._commands import Report
from seepage.cli._report_command import write_report
from seepage.core._whole_file import checksum, seal, unpack, unseal
from seepage.core.errors import SeepageError

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
_MARK = b'"sha256":"%s"'
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
    cases = {path: path.read_bytes() for path in (out / "cases").iterdir()}
    for number in range(rounds):
        path = rng.choice(sorted(cases))
        words = unseal(cases[path])
        changed = {**words, "record": mutate(words["record"], rng)}
        path.write_bytes(seal(unpack(cases[path])[0], changed))
        told = find_damage(out)
        assert len(told) <= 1
        assert not any("\n" in sentence for sentence in told)
        read(out, *(() if number % 10 == 0 else ("markdown",)))
        kept += not told
        path.write_bytes(cases[path])
    assert read(out)
    assert rounds / 30 < kept < rounds / 2, "all were refused, or hardly any"


@pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["plan.json", "cases", "inputs"])
def test_damaged_files_are_refused_in_one_sentence(out, name, rounds):
    rng = random.Random(0)
    for _ in range(rounds):
        place = out / name
        path = rng.choice(sorted(place.iterdir())) if place.is_dir() else place
        data = path.read_bytes()
        spoilt = bytearray(data)
        for _ in range(rng.choice([1, 4, 64])):
            # The header holds most of what can be wrong.
            at = rng.choice([rng.randrange(len(data)), rng.randrange(100)])
            spoilt[at] = rng.randrange(256)
        cut = spoilt[: rng.choice([len(data), len(data), rng.randrange(len(data))])]
        # At times sealed again, as by somebody who wants it to be read.
        path.write_bytes(cut if name == "plan.json" or rng.random() < 0.5 else reseal(bytes(cut)))
        read(out, rng.choice(["markdown", "html"]))
        path.write_bytes(data)
    assert read(out)


def reseal(data):
    """Write the checksum that a file has now, where its header still has a place for one."""
    empty = re.sub(rb'"sha256":"[0-9a-f]{64}"', _MARK % (b"0" * 64), data, count=1)
    return empty.replace(_MARK % (b"0" * 64), _MARK % checksum(empty).encode())
