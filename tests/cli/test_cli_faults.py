"""What goes wrong around an audit ends in one sentence, and the audit can go on."""

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.table import Table
from torch import nn
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import Pool, RunOptions, SpecSource, build_spec, load_audit
from seepage.audit._captured_data import read_capture
from seepage.audit._claims import Claims, Worker
from seepage.cli import app
from seepage.cli._commands import Audit, Shown
from seepage.cli._console import _SafeConsole
from seepage.core.errors import InvalidValue
from seepage.report import as_csv

NETWORKS = """
import os, signal, sys, time
from torch import nn

class Odd(nn.Sequential):
    def __init__(self, act):
        super().__init__(nn.Flatten(), nn.Linear(784, 10))
        self.act = act
    def forward(self, inputs):
        if inputs.min() < inputs.max():  # not the blank input of a check
            self.act()
        return super().forward(inputs)

def leaves(): return Odd(lambda: sys.exit("enough"))
def kills(): return Odd(lambda: os.kill(os.getpid(), signal.SIGKILL))
def sleeps(): return Odd(lambda: time.sleep(600))
def leaves_at_once(): sys.exit("at once")
def small(): return Odd(lambda: None)
"""
SPEC = """controls = false
metrics = ["psnr"]
[[scenario]]
data = { name = "digits" }
models = [{ name = "odd_networks:NAME" }, { name = "mlp", hidden = [8] }]
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
"""
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "odd_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    yield tmp_path
    sys.modules.pop("odd_networks", None)


def write_spec(name):
    Path("spec.toml").write_text(SPEC.replace("NAME", name))


def audit(*flags, spec="spec.toml"):
    words = ["audit", *([spec] if spec else []), "--out", "out", *flags]
    return CliRunner().invoke(app, words)


def command(*words):
    return [sys.executable, "-c", "from seepage.cli import main; main()", *words]


def test_a_network_that_wants_to_end_python_fails_alone():
    write_spec("leaves")
    assert audit().exit_code == 1
    failed, done = load_audit("out").records
    assert failed.error.startswith("SystemExit: what it says is not stored")
    assert done.error is None
    write_spec("leaves_at_once")
    refused = audit("--overwrite")
    assert "SystemExit: at once" in str(refused.exception)
    assert isinstance(refused.exception, sp.SeepageError)


@slow
def test_a_case_that_kills_the_process_does_not_stop_the_others_for_ever(place):
    write_spec("kills")
    run = command("audit", "spec.toml", "--out", "out", "--resume")
    codes = [subprocess.run(run, capture_output=True, check=False).returncode for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 1]
    failed, done = load_audit("out").records
    assert (failed.error, done.error) == ("its worker died 2 times (exit code -9)", None)


def test_cases_without_a_spec_that_ended_the_process_twice_are_given_up(tmp_path):
    write_spec("small")
    cases = build_spec(SpecSource.read(Path("spec.toml"))).cases

    def dies(given, started):
        started(given[0])
        raise SystemError  # the process is gone: nobody notes anything

    with pytest.MonkeyPatch.context() as patch:
        gone = replace(Worker.here(), began="in the last century")
        patch.setattr(Worker, "here", lambda **_: gone)
        patch.setattr(Claims, "give_back", lambda claims: None)
        for _ in range(2):
            with pytest.raises(SystemError):
                sp.audit.run(cases, "out", executor=dies, resume=True)
    first, second = sp.audit.run(cases, "out", resume=True).records
    assert (first.error, second.error) == ("it ended the process 2 times", None)
    # An interrupt is no fault of the case.
    for _ in range(3):
        with pytest.raises(SystemError):
            sp.audit.run(cases, "other", executor=dies, resume=True)
    assert not any(r.error for r in sp.audit.run(cases, "other", resume=True).records)


@slow
def test_a_case_that_takes_too_long_is_ended_and_the_others_run(place):
    write_spec("sleeps")
    began = time.monotonic()
    assert audit("--timeout", "30").exit_code == 1
    assert time.monotonic() - began < 300
    late, done = load_audit("out").records
    assert late.error == "it took longer than the timeout of 30 s"
    assert done.error is None


def test_a_timeout_stands_in_the_spec_or_on_the_command_line():
    text = SPEC.replace("NAME", "small")
    assert build_spec(SpecSource("s", f"timeout = 2.5\n{text}")).timeout == 2.5
    for wrong in ("0", "-1", "true", '"1"', "inf", "nan"):
        with pytest.raises(InvalidValue, match="timeout as "):
            build_spec(SpecSource("s", f"timeout = {wrong}\n{text}"))
    assert Pool(SpecSource("s", text), 1, Path("c"), 3.0).timeout == 3.0
    cases = build_spec(SpecSource("s", text)).cases
    with pytest.raises(InvalidValue, match="timeout out"):
        sp.audit.run(cases, timeout=1.0)


@slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_an_audit_like_ctrl_c(place, number):
    write_spec("sleeps")
    process = subprocess.Popen(
        command("audit", "spec.toml", "--out", "my out", "--plain", "--device", "cpu"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup or in the background a shell makes its children ignore one of these.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    for _ in range(1200):
        time.sleep(0.1)
        if (place / "my out" / "plan.json").exists():
            break
    time.sleep(2)
    process.send_signal(number)
    said, complained = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "interrupted before the first of 2 cases was done" in said
    again = "seepage audit spec.toml --out 'my out' --device cpu --resume --plain"
    assert f"to go on: {again}" in said
    assert "Traceback" not in complained


@slow
@pytest.mark.parametrize("after", [0.2, 1.0, 2.0, 4.0])
def test_ctrl_c_in_the_first_seconds_is_one_sentence(place, after):
    write_spec("sleeps")
    started = place / "started"
    # Python itself takes seconds to start on a busy machine, and nobody can catch Ctrl-C before.
    run = "from pathlib import Path; from seepage.cli import main; Path('started').touch(); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", run, "audit", "spec.toml", "--out", "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while process.poll() is None and not started.exists():
        time.sleep(0.05)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in said + complained
    assert "Traceback" not in complained


INTERRUPTED_IMPORT = """
import os, sys

_, module, number = sys.argv

class Interrupt:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Interrupt())
from seepage.__main__ import main

sys.argv = ["seepage", "list", "attacks"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["seepage.cli", "typer", "torch"])
def test_a_signal_while_the_program_is_loaded_is_one_sentence(module, number):
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, str(int(number))],
        capture_output=True,
        text=True,
        check=False,
        # Whoever runs the tests may ignore hang-ups, as nohup does.
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in (number, signal.SIGINT)],
    )
    assert ended.returncode == 128 + number
    assert ended.stdout == ""
    assert ended.stderr == f"\nseepage: interrupted by {number.name}; nothing was lost\n"


def test_the_command_that_goes_on_is_quoted_and_keeps_the_options():
    assert shlex.join(Audit().resuming()) == "seepage audit --resume"
    settings = RunOptions(
        device="cpu",
        workers=2,
        gates=("psnr=20", "identified=0"),
        timeout=2.5,
        keep_private=False,
        overwrite=True,
    )
    words = Audit(
        spec=Path("my spec; rm -rf.toml"),
        out=Path("$(out)"),
        settings=settings,
        shown=Shown(quiet=True),
    ).resuming()
    assert shlex.split(shlex.join(words)) == words
    assert shlex.join(words) == (
        "seepage audit 'my spec; rm -rf.toml' --out '$(out)' --device cpu --workers 2 --timeout "
        "2.5 --fail-above psnr=20 --fail-above identified=0 --resume --no-truth --quiet"
    )


def test_a_title_cannot_drive_the_terminal():
    text = io.StringIO()
    console = _SafeConsole(file=text, force_terminal=True, width=80)
    hostile = "a\x1b[2J\x1b]0;own\x07\x9b31mb\r\u202ec\udcff"
    table = Table("x")
    table.add_row(hostile)
    console.print(hostile, markup=False, style="bold")
    console.print(table)
    shown = text.getvalue()
    assert not set("\x07\x9b\r\u202e\udcff") & set(shown)
    assert "\x1b[2J" not in shown
    assert "\x1b]0" not in shown
    assert "\x1b[1m" in shown, "its own styles are kept"


@pytest.mark.parametrize(
    "cell", ["=1+1", "+1", "-1", "@x", "\t=x", "\r=x", " =x", "\n=x", "\uff1dx"]
)
def test_no_cell_of_a_table_is_a_formula(cell):
    for written in (cell, f"a\r{cell}", f"a\n{cell}"):
        [_, row] = as_csv([{"name": written}]).removesuffix("\n").split("\n")
        assert "\r" not in row
        assert row.lstrip('"').startswith(("'", "a"))


def test_long_labels_meta_networks_and_odd_names_are_one_sentence(place):
    sp.capture.save(sp.capture.Capture({"w": torch.ones(2)}, "gradient"), "c.safetensors")
    with pytest.raises(InvalidValue, match="class numbers from 0"):
        read_capture(capture="c.safetensors", labels=[10**29], shape=[1, 8, 8])
    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(InvalidValue, match="meta device"):
        sp.audit_step(model, nn.CrossEntropyLoss(), (torch.rand(1, 1, 8, 8), torch.tensor([1])))
    write_spec("small")
    name = os.fsdecode(b"caf\xe9")
    done = CliRunner().invoke(app, ["audit", "spec.toml", "--out", name])
    assert done.exit_code == 0, done.output
    cases = build_spec(SpecSource.read(Path("spec.toml"))).cases
    with pytest.raises(InvalidValue, match="names in UTF-8"):
        sp.audit.run(cases, "out", title=name)


def test_without_truth_only_scores_are_stored(place):
    write_spec("small")
    text = Path("spec.toml").read_text().replace("analytic_fc", "inverting_gradients")
    Path("spec.toml").write_text(text.replace('gradients"', 'gradients", steps = 2, restarts = 1'))
    done = audit("--no-truth")
    assert done.exit_code == 0, done.output
    read = load_audit("out")
    assert all(r.scores["psnr"] and r.identification for r in read.records)
    assert all(read.truth(r) is read.guess(r) is None for r in read.records)
    assert all(read.objective(r) is not None for r in read.records)
    assert not (place / "out" / "contact_sheet.png").exists()
    page = (place / "out" / "report.html").read_text()
    assert "This page holds scores only" in page
    assert "data:image/png" not in page
    assert CliRunner().invoke(app, ["verify", "out"]).exit_code == 0
    assert audit("--resume").exit_code == audit("--resume", "--no-truth").exit_code == 0
    assert audit("--overwrite").exit_code == 0
    assert "seepage purge out" in str(audit("--resume", "--no-truth").exception)


def test_a_strangers_spec_imports_nothing_unless_it_is_trusted(place, monkeypatch):
    write_spec("small")
    assert audit().exit_code == 0
    assert audit("--resume", spec=None).exit_code == 0, "one's own audit needs no trust"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "theirs"))
    sys.modules.pop("odd_networks")
    refused = audit("--resume", spec=None)
    said = "was not begun by you, and its spec would import and run odd_networks:small; read that"
    assert said in str(refused.exception)
    assert "odd_networks" not in sys.modules
    assert CliRunner().invoke(app, ["report", "out"]).exit_code == 0
    assert "odd_networks" not in sys.modules
    assert audit("--resume", "--trust", spec=None).exit_code == 0
    assert audit("--resume").exit_code == 0, "a spec that the user names is the user's choice"


def test_a_spec_for_people_to_read_that_differs_is_not_passed_over(place):
    write_spec("small")
    assert audit().exit_code == 0
    shutil.copy(place / "spec.toml", place / "kept.toml")
    (place / "out" / "spec.toml").write_text("# harmless\n")
    refused = audit("--resume", spec=None)
    assert "spec.toml' differs from the spec with which the audit began" in str(refused.exception)
    (place / "out" / "spec.toml").unlink()
    assert audit("--resume", spec=None).exit_code == 0


@pytest.mark.slow
def test_an_audit_ends_well_where_the_output_takes_only_ascii(place):
    title, out = "Prüfung mit \N{GREEK SMALL LETTER SIGMA} — ✓", "aus gäbe"
    text = f"title = {title!r}\n{SPEC.replace('NAME', 'small')}"
    (place / "spec.toml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "seepage", "audit", "spec.toml", "--out", out, "--plain"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert b"Pr\\xfcfung mit \\u03c3" in done.stdout
    assert load_audit(place / out).title == title
    assert title in (place / out / "report.html").read_text(encoding="utf-8")


UNSTORABLE = """
from dataclasses import dataclass
import math
import torch
from seepage.core import Certificate, Reconstruction

@dataclass(frozen=True)
class Odd:
    kind: str
    def __call__(self, seen, *, rng):
        guess = torch.zeros(seen.batch_size, *seen.task.domain.shape)
        residual = math.nan if self.kind == "nan" else torch.zeros(2)
        return Reconstruction(guess, certificate=Certificate(residual))

def attack(kind): return Odd(kind)
"""


@pytest.mark.parametrize("kind", ["nan", "tensor"])
def test_a_result_that_cannot_be_stored_fails_alone(place, kind):
    (place / "unstorable.py").write_text(UNSTORABLE)
    attacks = f'[{{ name = "unstorable:attack", kind = "{kind}" }}, {{ name = "analytic_fc" }}]'
    spec = SPEC.replace('{ name = "odd_networks:NAME" }, ', "")
    (place / "spec.toml").write_text(spec.replace('{ name = "analytic_fc" }', attacks))
    ended = CliRunner().invoke(app, ["audit", "spec.toml", "--out", "out", "--plain"])
    assert ended.exit_code == 1, ended.output
    odd, good = load_audit(place / "out").records
    assert "gave a result that cannot be stored" in str(odd.error)
    assert good.error is None
    assert good.scores


def test_an_audit_with_an_infinite_option_can_be_read_and_resumed(place):
    spec = SPEC.replace('{ name = "odd_networks:NAME" }, ', "")
    (place / "spec.toml").write_text(spec + 'defenses = { name = "Clip", max_norm = inf }')
    for more in ([], ["--resume"]):
        ended = CliRunner().invoke(app, ["audit", "spec.toml", "--out", "out", *more])
        assert ended.exit_code == 0, ended.output
    [record] = load_audit(place / "out").records
    assert record.defense[0].arguments == {"max_norm": float("inf")}
    other = spec + 'defenses = { name = "Clip", max_norm = 1.0 }'
    (place / "spec.toml").write_text(other)
    ended = CliRunner().invoke(app, ["audit", "spec.toml", "--out", "out", "--resume"])
    assert "defense was" in str(ended.exception)
