"""Resuming, rehearsing and gating an audit from the command line."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import Record, load_audit
from seepage.audit import _spec_entries as entries
from seepage.audit._run_spec import pick_device
from seepage.cli import app, main
from seepage.cli._run_audit import _AuditProgress
from seepage.core import _progress as progress
from seepage.core._checkpoint import checkpointing
from seepage.core._construct import Component

# A process begun in the background inherits that interrupts are ignored; this one listens.
LISTENING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from seepage.cli import main; main()"
)

SPEC = """controls = false
title = "Small"
metrics = ["psnr", "l1"]
[[scenario]]
data = { name = "photos", people = 3, start = 0, pixels = 8 }
models = { name = "mlp", hidden = [8] }
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
defenses = [[], { name = "AddGaussian", std = 0.01 }]
"""


def timeless(record):
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


@pytest.fixture(autouse=True)
def place(wide_place):
    (wide_place / "spec.toml").write_text(SPEC)
    return wide_place


def seepage(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def audit(*flags):
    return seepage("spec.toml", "--out", "out", *flags)


@pytest.fixture
def counted(monkeypatch):
    """The people the attack has met, in order."""
    met = []

    def counting():
        """Count."""
        return _Counting(met)

    monkeypatch.setattr(entries, "ALL_ATTACKS", {"analytic_fc": counting})
    return met


class _Counting:
    def __init__(self, met):
        self.met = met

    def __repr__(self):
        return "Counting()"

    def __call__(self, observation, *, rng):
        if _Counting.patience is not None and len(self.met) == _Counting.patience:
            raise KeyboardInterrupt
        self.met.append(rng)
        return sp.attacks.analytic_fc()(observation, rng=rng)

    patience = None


@pytest.fixture
def interrupted(counted, monkeypatch, capsys):
    """An audit of six cases that somebody stopped after four."""
    monkeypatch.setattr(_Counting, "patience", 4)
    monkeypatch.setattr(sys, "argv", ["seepage", "audit", "spec.toml", "--out", "out"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    monkeypatch.setattr(_Counting, "patience", None)
    return capsys.readouterr().out


def test_an_interrupted_audit_says_how_to_go_on_and_then_does_exactly_what_is_missing(
    interrupted, counted, place
):
    assert "interrupted after 4 of 6 cases; they are in out" in interrupted
    assert "to go on: seepage audit spec.toml --out out --resume" in interrupted
    before = load_audit(place / "out").records
    counted.clear()
    done = audit("--resume")
    assert done.exit_code == 0, done.output
    assert len(counted) == 2
    assert "4 cases are done, 2 to run" in done.output
    assert "[5/6]" in done.output
    assert "[6/6]" in done.output
    after = load_audit(place / "out")
    assert after.complete
    assert after.records[:4] == before


def test_resuming_needs_no_spec_since_the_directory_holds_it(interrupted, place):
    (place / "spec.toml").unlink()
    assert seepage("--out", "out", "--resume").exit_code == 0
    assert load_audit(place / "out").complete


def test_resuming_a_finished_audit_shows_it_and_runs_nothing(counted, place):
    first = audit()
    counted.clear()
    again = audit("--resume")
    assert again.exit_code == 0
    assert counted == []
    assert first.output.split("What leaked")[1] == again.output.split("What leaked")[1]


def test_resuming_where_nothing_has_begun_begins(place):
    assert audit("--resume").exit_code == 0
    assert load_audit(place / "out").complete


@pytest.mark.parametrize("flags", [[], ["--resume"], ["--overwrite"]])
def test_an_audit_begins_where_another_was_killed_while_it_began(place, flags):
    (place / "out").mkdir()
    (place / "out" / "audit.lock").write_text("seepage 12345\n")
    (place / "out" / ".plan.json.0123abcd.partial").write_bytes(b'{"seepage audit"')
    done = audit(*flags)
    assert done.exit_code == 0, done.output
    assert load_audit(place / "out").complete
    assert not list((place / "out").rglob("*.partial"))


@pytest.mark.parametrize("command", ["plain", "--resume", "--overwrite", "report"])
@pytest.mark.parametrize("name", ["plan.json", "report.html", "spec.toml"])
def test_what_is_no_audit_is_one_sentence_and_untouched(place, name, command):
    (place / "out").mkdir()
    (place / "out" / name).write_text("mine")
    done = (
        CliRunner().invoke(app, ["report", "out"])
        if command == "report"
        else audit(*([] if command == "plain" else [command]))
    )
    assert isinstance(done.exception, sp.SeepageError)
    assert "\n" not in str(done.exception)
    assert [(p.name, p.read_text()) for p in (place / "out").iterdir()] == [(name, "mine")]


def test_overwriting_leaves_no_file_of_the_earlier_audit_and_every_other(place):
    assert audit().exit_code == 0
    earlier = {path.name for path in (place / "out" / "cases").iterdir()}
    (place / "out" / "cases" / "mine.safetensors").write_text("mine")
    (place / "spec.toml").write_text(SPEC.replace('"photos"', '"digits"'))
    assert audit("--overwrite").exit_code == 0
    now = {path.name for path in (place / "out" / "cases").iterdir()}
    assert now & (earlier | {"mine.safetensors"}) == {"mine.safetensors"}
    assert load_audit(place / "out").damaged == ()
    assert load_audit(place / "out").complete


def test_a_truncated_artifact_is_named_and_made_anew(counted, place):
    assert audit().exit_code == 0
    record = load_audit(place / "out").records[2]
    path = place / "out" / "cases" / f"{record.case}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    counted.clear()
    mended = audit("--resume")
    assert mended.exit_code == 0
    assert f"{record.case}.safetensors was damaged and is made anew" in mended.output
    assert len(counted) == 1
    assert timeless(load_audit(place / "out").records[2]) == timeless(record)


def test_a_picture_that_cannot_be_drawn_loses_no_record(place):
    (place / "out").mkdir()
    assert audit().exit_code == 0
    (place / "out" / "contact_sheet.png").unlink()
    (place / "out" / "contact_sheet.png").mkdir()
    refused = audit("--resume")
    assert "cannot draw 'out/contact_sheet.png': Is a directory" in str(refused.exception)
    assert load_audit(place / "out").complete


def test_another_spec_is_never_mixed_in(interrupted, place):
    before = load_audit(place / "out")
    (place / "spec.toml").write_text(SPEC.replace("std = 0.01", "std = 0.02"))
    refused = audit("--resume")
    said = "defense was 'AddGaussian(std=0.01)' and is now 'AddGaussian(std=0.02)'"
    assert said in str(refused.exception)
    assert load_audit(place / "out") == before
    (place / "spec.toml").write_text("# a remark changes nothing\n" + SPEC)
    assert audit("--resume").exit_code == 0


def often(folder, *, inside=False):
    return checkpointing(folder, every=20, inside=inside)


def test_a_search_goes_on_from_its_checkpoint_and_ends_with_the_same_record(place, monkeypatch):
    attack = '{ name = "inverting_gradients", steps = 75, restarts = 1 }'
    text = SPEC.replace('{ name = "analytic_fc" }', attack).replace("people = 3", "people = 1")
    text = text.replace("defenses = [[], ", "defenses = [").replace('"photos"', '"digits"')
    (place / "spec.toml").write_text(text)
    assert seepage("spec.toml", "--out", "whole").exit_code == 0
    monkeypatch.setattr(sys.modules[pick_device.__module__], "checkpointing", often)
    heard = []

    def impatient(display, step, steps, objective):
        heard.append(step)
        if step >= 50:
            raise KeyboardInterrupt

    monkeypatch.setattr(_AuditProgress, "_show_step", impatient)
    assert audit().exit_code != 0
    assert len(list((place / "out" / "checkpoints").iterdir())) == 1
    assert load_audit(place / "out").records == ()

    heard.clear()
    monkeypatch.setattr(
        _AuditProgress, "_show_step", lambda _, step, steps, objective: heard.append(step)
    )
    assert audit("--resume").exit_code == 0
    assert heard[0] >= 40
    assert not (place / "out" / "checkpoints").exists()
    resumed, whole = (load_audit(place / name) for name in ("out", "whole"))
    assert list(map(timeless, resumed.records)) == list(map(timeless, whole.records))
    for record in whole.records:
        assert (resumed.objective(record) == whole.objective(record)).all()


def test_a_dry_run_lists_the_cases_estimates_the_time_and_leaves_nothing(place):
    done = audit("--dry-run")
    assert done.exit_code == 0, done.output
    first = r"   1 +(< )?\d+ s  analytic_fc on photos\(pixels=8\) #0 \(mlp\(hidden=\(8,\)\), "
    assert re.search(first, done.output), done.output
    assert "6 cases to run, about " in done.output
    assert not (place / "out").exists()


def test_a_dry_run_of_an_interrupted_audit_lists_what_is_missing(interrupted, counted):
    counted.clear()
    done = audit("--dry-run", "--resume")
    assert "2 cases to run" in done.output
    assert "   2 " in done.output
    assert "   3 " not in done.output
    assert counted == [], "recorded seconds need no measuring"


def test_a_long_search_is_estimated_from_few_steps(place):
    attack = '{ name = "inverting_gradients", steps = 200000, restarts = 1 }'
    (place / "spec.toml").write_text(SPEC.replace('{ name = "analytic_fc" }', attack))
    began = time.perf_counter()
    done = audit("--dry-run")
    spent = time.perf_counter() - began
    hours, minutes = re.search(r"about (?:(\d+) h )?(?:(\d+) min)?", done.output).groups()
    assert 60 * int(hours or 0) + int(minutes or 0) > 3 * spent / 60


@pytest.mark.parametrize(
    ("gates", "code", "said"),
    [
        (["psnr=200"], 0, ""),
        (
            ["psnr=60"],
            3,
            "leaked: photos(pixels=8) #1 through analytic_fc on mlp(hidden=(8,)) behind no ",
        ),
        (["psnr=40"], 3, "=0.01, psnr 4"),
        # The less distance is left, the more has leaked.
        (["l1=1e-12"], 0, ""),
        (["l1=0.5"], 3, "l1 "),
        (["psnr=200", "l1=0.5"], 3, "(gate 0.5)"),
    ],
)
def test_a_gate_trips_in_the_direction_of_its_metric_and_names_who_leaked(gates, code, said):
    done = audit(*(word for gate in gates for word in ("--fail-above", gate)))
    assert done.exit_code == code, done.output
    assert said in done.output
    assert ("leaked: " in done.output) == (code == 3)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ('metrics = ["psnr", "ssim"]', "which spec.toml does not measure; add it to metrics"),
        ("", "no case could measure ssim, so --fail-above says nothing; use another metric"),
    ],
)
def test_a_gate_on_what_no_case_measures_is_an_error_not_a_pass(metrics, said, place):
    small = SPEC.replace('"photos", people = 3', '"photos", people = 1').replace(
        "pixels = 8", "pixels = 4"
    )
    (place / "spec.toml").write_text(small.replace('metrics = ["psnr", "l1"]', metrics))
    assert said in str(audit("--fail-above", "ssim=0.5").exception)


def test_a_gate_and_a_failure_together_exit_for_the_gate(place):
    (place / "broken_attack.py").write_text(
        "def attack():\n    return refuse\n\n"
        "def refuse(observation, *, rng):\n    raise RuntimeError('it broke')\n"
    )
    both = '[{ name = "analytic_fc" }, { name = "broken_attack:attack" }]'
    (place / "spec.toml").write_text(SPEC.replace('{ name = "analytic_fc" }', both))
    assert audit("--fail-above", "psnr=60").exit_code == 3
    assert audit("--resume").exit_code == 1


@pytest.mark.parametrize("flags", [[], ["--plain"]])
def test_logs_get_a_line_per_case_and_no_bar(flags):
    done = audit(*flags)
    assert [f"[{n}/6]" in done.output for n in range(1, 7)] == [True] * 6
    assert "\x1b" not in done.output


def test_a_terminal_shows_what_is_done_the_worst_leak_and_the_objective():
    record = replace(_record(), scores={"psnr": (31.0,)})
    for plain, bar in ((False, True), (True, False)):
        text = io.StringIO()
        console = Console(file=text, force_terminal=True, width=200)
        shown_on = _AuditProgress(console, plain=plain)
        with shown_on.begin(total=4, done=[record], mended=()):
            shown_on.finished(record)
            progress.report(5, 10, 0.25)
        shown = text.getvalue()
        assert ("2/4" in shown.replace("[2/4]", "")) == bar
        assert ("objective 0.25, worst 31.0 dB" in shown) == bar
        assert ("[2/4] photos #0 it behind no defense: 31.0 dB" in shown) == plain


def test_a_log_hears_now_and_then_of_a_search_that_takes_long(monkeypatch):
    text, clock = io.StringIO(), iter([0.0, 30.0, 61.0, 61.0, 90.0])
    monkeypatch.setattr(
        "seepage.cli._run_audit.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    shown = _AuditProgress(Console(file=text, width=200), plain=True)
    with shown.begin(total=1, done=(), mended=()):
        shown.started("the search")
        for step in (100, 200, 300):
            progress.report(step, 400, 0.25)
    assert text.getvalue() == "the search: step 200/400, objective 0.25\n"


def _record():
    local, threat = Component("Gradient"), Component("Threat")
    return Record("photos", (0,), "mlp", local, (), threat, Component("it"), 0)


def gone(group, seconds=20):
    """Whether nobody is left in a group of processes, or soon will be."""
    for _ in range(10 * seconds):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("flags", [[], ["--workers", "2"]], ids=str)
def test_ctrl_c_ends_workers_too_and_what_they_finished_is_kept(flags, place):
    slow = SPEC.replace(
        '{ name = "analytic_fc" }',
        '[{ name = "analytic_fc" }, { name = "inverting_gradients", steps = 90000, restarts = 1 }]',
    ).replace("defenses = [[], ", "defenses = [")
    (place / "spec.toml").write_text(slow)
    command = [sys.executable, "-c", LISTENING, "audit", "spec.toml"]
    process = subprocess.Popen(
        [*command, "--out", "out", *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(1200):
            time.sleep(0.1)
            there = (place / "out" / "plan.json").exists()
            if there and len(load_audit(place / "out").records) == 3:
                break
        # As a terminal does: to the command and its workers alike.
        os.killpg(process.pid, signal.SIGINT)
        said, complained = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted after 3 of 6 cases" in said
    assert "Traceback" not in complained
    assert gone(process.pid), "a worker outlived the command"
