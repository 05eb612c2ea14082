"""The commands, run as a user runs them."""

import json
import os
import re
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from typing import get_args

import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.attacks.feature_recovery._features import NotToldApartWarning
from seepage.audit import _spec_entries as entries
from seepage.audit import load_audit
from seepage.bounds import BOUNDS
from seepage.bounds.risk import RISKS
from seepage.cli import _commands as commands
from seepage.cli import app, main
from seepage.cli._parser import _list_options
from seepage.clients import LOCALS
from seepage.defenses import DEFENSES
from seepage.rehearsal import ALL_ATTACKS
from seepage.scoring import METRICS
from seepage.zoo import MODELS

TINY = """controls = false
title = "Tiny"
metrics = ["psnr", "exact"]
[[scenario]]
data = { name = "photos", people = 1, start = 0 }
models = [{ name = "mlp", hidden = [8] }]
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
"""


def people(count):
    return TINY.replace("people = 1", f"people = {count}")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def audit(place):
    """Run an audit of this spec, and return the result with the records it left."""

    def audit(text=TINY, *flags):
        (place / "spec.toml").write_text(text)
        result = CliRunner().invoke(app, ["audit", "spec.toml", "--out", "out", *flags])
        return result, records(place / "out")

    return audit


def records(out):
    return list(load_audit(out).records)


def test_the_version_is_printed():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"seepage {sp.__version__}\n")


def test_an_option_of_several_commands_is_the_same_in_all():
    audited, inspected, vetted = (
        [(one.type, one.option) for one in _list_options(command) if one.field.name == "option"]
        for command in (commands.Audit, commands.Inspect, commands.Vet)
    )
    assert audited == inspected == vetted != []


def test_without_a_command_the_help_is_shown():
    result = CliRunner().invoke(app, [])
    assert "audit" in result.output
    assert "list" in result.output


CATALOGUES = {
    "attacks": set(ALL_ATTACKS),
    "defenses": set(DEFENSES),
    "locals": set(LOCALS),
    "models": {*MODELS, "hf:NAME", "timm:NAME"},
    "data": set(sp.data.catalogue()),
    "metrics": set(METRICS),
    "bounds": set(BOUNDS),
    "risks": set(RISKS),
}


@pytest.mark.parametrize("kind", get_args(commands.Kind))
def test_each_catalogue_lists_every_name_with_a_line_about_it(kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["list", kind])
    assert result.exit_code == 0
    listed = dict(line.split(maxsplit=1) for line in result.output.splitlines() if line.strip())
    assert set(listed) == CATALOGUES[kind]
    assert all(len(about.strip()) > 10 for about in listed.values())


@pytest.mark.parametrize("kind", ["attacks", "defenses", "locals"])
def test_each_part_is_listed_with_its_paper(kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = CliRunner().invoke(app, ["list", kind]).output.strip().splitlines()
    assert all(re.search(r"\([a-z]+\d{4}[a-z]+", line) for line in lines)


def test_an_audit_leaves_records_pictures_spec_and_environment(audit, place):
    from PIL import Image

    result, kept = audit()
    assert result.exit_code == 0, result.output
    names = {"cases", "inputs", "audit.lock", "plan.json", "contact_sheet.png"} | {
        "environment.json",
        "report.html",
        "spec.toml",
    }
    assert {p.name for p in (place / "out").iterdir()} == names
    [record] = kept
    assert record.scores["psnr"][0] > 60
    assert record.scores["exact"] == (1.0,)
    assert record.error is None
    assert (place / "out" / "spec.toml").read_text() == (place / "spec.toml").read_text()
    assert "torch" in json.loads((place / "out" / "environment.json").read_text())["packages"]
    with Image.open(place / "out" / "contact_sheet.png") as sheet:
        assert sheet.format == "PNG"


def test_an_audit_says_what_leaked_and_where_it_is_kept(audit):
    result, _ = audit()
    assert "Tiny: 1 case on cpu" in result.output
    assert "[1/1] photos #0 analytic_fc behind no defense: " in result.output
    assert "What leaked of photos, worst first" in result.output
    assert "pictures: out/contact_sheet.png   records: out/cases" in result.output


def test_quiet_shows_only_the_result(audit):
    result, _ = audit(TINY, "--quiet")
    assert "[1/1]" not in result.output
    assert "What leaked of photos, worst first" in result.output


def test_a_case_that_cannot_work_is_recorded_while_the_others_complete(audit):
    text = people(2).replace("models = [", 'models = [{ name = "cnn2-v2" }, ')
    result, kept = audit(text)
    assert result.exit_code == 0
    errors = [record.error for record in kept]
    assert all("no fully connected layer" in error for error in errors[:2])
    assert errors[2:] == [None, None]
    assert result.output.count("Not applicable: ") == 1
    assert "n/a" in result.output.split("What leaked")[1]


def test_an_audit_in_which_nothing_applies_ends_with_1_and_the_reason(audit):
    text = people(2).replace('"mlp", hidden = [8]', '"cnn2-v2"')
    gates = "--fail-above", "identified=0", "--fail-if-inconclusive"
    result, kept = audit(text, *gates)
    assert result.exit_code == 1
    assert all(record.error for record in kept)
    assert "no attack applies: cnn(variant='cnn2-v2') has no fully" in result.output
    assert "identified" not in result.output.replace("Found: people identified", "")


def test_a_network_beside_the_command_is_found(audit, place):
    (place / "beside_network.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n"
    )
    result, [record] = audit(TINY.replace('"mlp", hidden = [8]', '"beside_network:build"'))
    assert result.exit_code == 0, result.output
    assert record.model == "beside_network:build"


def test_signals_have_no_pictures_and_none_are_announced(audit, place):
    import numpy as np

    beats = np.random.default_rng(0).random((4, 1, 30), dtype=np.float32)
    np.savez(place / "beats.npz", inputs=beats, labels=np.array([0, 1, 0, 1]))
    result, kept = audit(TINY.replace('"photos"', '"npz:beats.npz"'))
    assert result.exit_code == 0, result.output
    assert kept[0].scores["psnr"][0] > 60
    assert not (place / "out" / "contact_sheet.png").exists()
    assert "pictures:" not in result.output
    assert "records: out/cases" in result.output


def test_names_that_look_like_markup_are_printed_as_they_are(audit):
    result, _ = audit(TINY.replace('"Tiny"', '"[/red] [bold]"'))
    assert result.exit_code == 0, result.output
    assert "[/red] [bold]: 1 case on" in result.output


def test_overwriting_replaces_an_audit(audit, place):
    audit(people(3))
    before = records(place / "out")
    refused, kept = audit()
    assert isinstance(refused.exception, sp.SeepageError)
    assert "already holds an audit" in str(refused.exception)
    assert records(place / "out") == before
    replaced, kept = audit(TINY, "--overwrite")
    assert replaced.exit_code == 0
    assert len(kept) == 1


@dataclass(frozen=True)
class Impatient:
    """Attacks like the closed form until somebody presses Ctrl-C at the third person."""

    calls: list[int]

    def __call__(self, observation, *, rng):
        self.calls.append(1)
        if len(self.calls) == 3:
            raise KeyboardInterrupt
        return sp.attacks.analytic_fc()(observation, rng=rng)


class Doubtful:
    """Warns, as of ours and of somebody else's, and attacks."""

    def __call__(self, observation, *, rng):
        warnings.warn("two people look alike", NotToldApartWarning, stacklevel=1)
        warnings.warn("two others look alike", NotToldApartWarning, stacklevel=1)
        warnings.warn("it is old", FutureWarning, stacklevel=1)
        warnings.warn("the driver\nis old", UserWarning, stacklevel=1)
        return sp.attacks.analytic_fc()(observation, rng=rng)


OURS = "seepage: warning: two people look alike; the same of other updates is not shown\n"


@pytest.fixture
def doubted(place, monkeypatch, capsys):
    """What a user sees of an audit whose attack warns, on standard error."""

    def doubtful():
        """Warn."""
        return Doubtful()

    def doubted():
        monkeypatch.setattr(entries, "ALL_ATTACKS", {"analytic_fc": doubtful})
        (place / "spec.toml").write_text(people(1))
        monkeypatch.setattr(sys, "argv", ["seepage", "audit", "spec.toml", "--out", "out"])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
        return capsys.readouterr().err

    return doubted


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_sentence_without_a_place_in_the_code(doubted, monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", [])
    # The second of ours is not shown, nor what only a programmer can heed.
    assert doubted() == OURS + "seepage: warning: the driver is old\n"


@pytest.mark.filterwarnings("default", "ignore:the driver")
def test_warnings_of_others_are_shown_as_python_does_where_they_are_asked_for(doubted, monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", ["default"])
    with pytest.warns(FutureWarning, match="it is old"):
        assert doubted() == OURS


WARNING_NET = """
import warnings
from torch import nn
from seepage.attacks.feature_recovery import NotToldApartWarning

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3072, 10))

    def forward(self, inputs):
        warnings.warn("two people look alike", NotToldApartWarning)
        warnings.warn("it is old", FutureWarning)
        return super().forward(inputs)
"""


@pytest.mark.slow
def test_workers_warn_in_the_same_sentences(place):
    (place / "warning_net.py").write_text(WARNING_NET)
    (place / "spec.toml").write_text(people(2).replace('"mlp", hidden = [8]', '"warning_net:Net"'))
    command = [*("audit", "spec.toml", "--out", "out", "--workers", "2", "--device", "cpu")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNINGS"}
    said = subprocess.run(
        [sys.executable, "-m", "seepage", *command],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert said.stderr == OURS


def test_an_interrupted_audit_keeps_what_is_finished(place, monkeypatch, capsys):
    def impatient():
        """Lose patience."""
        return Impatient([])

    monkeypatch.setattr(entries, "ALL_ATTACKS", {"analytic_fc": impatient})
    (place / "spec.toml").write_text(people(4))
    monkeypatch.setattr(sys, "argv", ["seepage", "audit", "spec.toml", "--out", "out"])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    assert stopped.value.code == 130
    assert [record.people for record in records(place / "out")] == [(0,), (1,)]
    assert (place / "out" / "contact_sheet.png").exists()
    assert "interrupted after 2 of 4 cases; they are in out" in said.out
    assert "Traceback" not in said.err + said.out


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_the_help_and_the_version_do_not_wait_for_torch(flag):
    program = (
        "import sys; from seepage.cli import main; sys.argv = ['seepage', sys.argv[1]]\n"
        "try: main()\n"
        "except SystemExit: print('torch' in sys.modules, 'seepage.core' in sys.modules)"
    )
    began = time.monotonic()
    said = subprocess.run(
        [sys.executable, "-c", program, flag], capture_output=True, text=True, check=True
    )
    assert said.stdout.endswith("False False\n"), said.stdout + said.stderr
    assert time.monotonic() - began < 10, "a quiet core takes a quarter of a second"
