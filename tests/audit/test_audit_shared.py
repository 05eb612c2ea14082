"""Several processes, on one machine or several, fill one folder: every case once, none lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import seepage as sp
from seepage.audit import AuditStore, Outcome, Record, load_audit
from seepage.audit._claims import STALE, Claims, Worker
from seepage.audit._folder import find_damage, purge
from seepage.core._construct import Component
from seepage.core._schema import to_plain
from seepage.core.errors import InvalidValue


def planned(*names):
    truth = {"inputs": torch.zeros(1, 1)}
    who = SimpleNamespace(digest="people", tensors=truth, words=())
    return [SimpleNamespace(id=n, description=n, identity={"is": n}, target=who) for n in names]


CASES = planned("a", "b", "c")
HERE = {"title": "t", "spec": "s", "environment": {}, "cases": CASES}


def outcome(case):
    it = Component("it")
    record = Record("d", (0,), "m", it, (it,), it, it, 0, case=case.id, truth="people")
    return Outcome(record, torch.zeros(1, 1), torch.zeros(1, 1))


@pytest.fixture
def out(tmp_path):
    AuditStore.create(tmp_path / "out", **HERE).close()
    return tmp_path / "out"


def claim_elsewhere(out, case, *, age=0.0, number=1, **changed):
    """Claim a case as a process of another machine does."""
    (out / "cases").mkdir(exist_ok=True)
    worker = {**to_plain(Worker.here()), "host": "farm-7", "machine": "another", **changed}
    path = out / "cases" / f"{case.id}.{number}.claim"
    path.write_text(json.dumps(worker))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_case_is_claimed_by_one_process_and_free_again_when_it_is_done(out):
    with AuditStore.resume(out, cases=CASES) as one, AuditStore.resume(out, cases=CASES) as other:
        assert one.alone
        assert not other.alone
        assert one.claim(CASES[0])
        assert one.claim(CASES[0]), "a worker died, and the same process tries again"
        assert not other.claim(CASES[0])
        assert other.claim(CASES[1])
        one.add(CASES[0], outcome(CASES[0]))
        assert not other.claim(CASES[0]), "it is done"
        other.add(CASES[1], outcome(CASES[1]))
        assert [record.case for record in one.records()] == ["a", "b"]
    assert not list(out.glob("cases/*.claim"))


def test_the_result_that_was_stored_first_stays(out):
    with AuditStore.resume(out, cases=CASES) as one:
        one.add(CASES[0], outcome(CASES[0]))
        before = (out / "cases" / "a.safetensors").read_bytes()
        one.add(CASES[0], outcome(CASES[0]))
        assert (out / "cases" / "a.safetensors").read_bytes() == before


def test_a_live_process_elsewhere_keeps_its_case_and_a_silent_one_loses_it(out):
    fresh = claim_elsewhere(out, CASES[0])
    claim_elsewhere(out, CASES[1], age=2 * STALE)
    with AuditStore.resume(out, cases=CASES) as store:
        assert not store.alone
        assert Claims(out).others() == [f"process {os.getpid()} on farm-7"]
        assert not store.claim(CASES[0])
        assert store.claim(CASES[1])
        assert store.claim(CASES[2])
        assert store.tries() == {"b": 1}
        # A clock that is far ahead is no sign of life either.
        os.utime(fresh, (time.time() + 1e6,) * 2)
        assert store.claim(CASES[0])


@pytest.mark.parametrize(
    "alone",
    [
        lambda out: AuditStore.resume(out, cases=CASES, retry_failed=True),
        lambda out: AuditStore.resume(out, cases=CASES, extend="s"),
        lambda out: AuditStore.create(out, **HERE, overwrite=True),
        purge,
    ],
    ids=["--retry-failed", "extend", "--overwrite", "purge"],
)
def test_what_needs_the_folder_for_itself_says_who_works_there(out, alone):
    claim_elsewhere(out, CASES[0])
    with pytest.raises(InvalidValue, match=f"is in use by process {os.getpid()} on farm-7; wait"):
        alone(out)


def test_the_numbers_of_claims_tell_how_often_a_case_has_ended_its_process(out):
    ended = {"machine": Worker.here().machine, "began": "long ago"}
    claim_elsewhere(out, CASES[0], **ended)
    claim_elsewhere(out, CASES[0], number=2, **ended)
    claim_elsewhere(out, CASES[1], **ended, counts=False)
    with AuditStore.resume(out, cases=CASES) as store:
        assert store.alone, "those processes have ended"
        assert store.tries() == {"a": 2}
        assert store.claim(CASES[0])
        assert (out / "cases" / "a.3.claim").exists()
    with AuditStore.resume(out, cases=CASES) as store:
        assert store.tries() == {"a": 2}, "an interrupt is no fault of the case"


def test_a_claim_that_is_not_written_yet_is_respected_for_a_while(out):
    (out / "cases").mkdir()
    path = out / "cases" / "a.1.claim"
    claims = Claims(out)
    for text in ("", '{"host"', "[" * 10_000, '{"pid": -1}'):
        path.write_text(text)
        assert not claims.take("a")
    os.utime(path, (1e9, 1e9))
    assert claims.take("a")
    claims.close()


def test_a_half_written_case_runs_again_also_for_those_who_join(out):
    with AuditStore.resume(out, cases=CASES) as one:
        one.add(CASES[0], outcome(CASES[0]))
        path = out / "cases" / "a.safetensors"
        path.write_bytes(path.read_bytes()[:-3])
        with AuditStore.resume(out, cases=CASES) as other:
            assert other.claim(CASES[0])
            other.add(CASES[0], outcome(CASES[0]))
    assert find_damage(out) == []


SPEC = """controls = false
metrics = ["psnr"]
seeds = [0, 1, 2, 3]
[[scenario]]
data = { name = "digits", people = 3, start = 0 }
models = { name = "mlp", hidden = [8] }
threats = { knows_labels = true }
attacks = [{ name = "analytic_fc" }, { name = "inverting_gradients", steps = 20, restarts = 1 }]
"""
# The command, noting every case as it begins.
COUNTED = """
import os, sys
import seepage.audit._run_case
from seepage.cli import main

execution = sys.modules["seepage.audit._run_case"]
run = execution.run_case

def counted(case):
    with open("begun", "a") as begun:
        begun.write(f"{os.getpid()} {case.id}\\n")
    return run(case)

execution.run_case = counted
sys.argv = ["seepage", "audit", "spec.toml", "--out", "out", "--resume", "--plain"]
main()
"""


def start(place):
    return subprocess.Popen(
        [sys.executable, "-c", COUNTED],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_processes_started_together_run_every_case_once_and_take_over_from_the_dead(
    tmp_path, killed
):
    (tmp_path / "spec.toml").write_text(SPEC)
    running = [start(tmp_path) for _ in range(2)]
    begun = tmp_path / "begun"
    if killed:
        while not begun.exists() or len(begun.read_text().splitlines()) < 4:
            time.sleep(0.02)
        running[0].send_signal(signal.SIGKILL)
    said = [process.communicate(timeout=300)[0] for process in running]
    codes = [process.returncode for process in running]
    assert codes == ([-signal.SIGKILL, 0] if killed else [0, 0]), said
    found = load_audit(tmp_path / "out")
    assert found.complete
    assert find_damage(tmp_path / "out") == []
    assert not list((tmp_path / "out").rglob("*.claim"))
    lines = [line.split()[1] for line in begun.read_text().splitlines()]
    assert len(set(lines)) == 24
    assert len(lines) - 24 <= killed, "a case ran twice that no killed process had begun"


def test_an_audit_that_waits_for_another_process_takes_over_when_it_falls_silent(tmp_path):
    spec = sp.audit.build_spec(sp.audit.SpecSource("s", SPEC.replace(", 1, 2, 3", "")))
    sp.audit.run(spec, tmp_path / "out", executor=lambda cases, started: [])
    path = claim_elsewhere(tmp_path / "out", spec.cases[0], age=STALE - 1)
    found = sp.audit.run(spec, tmp_path / "out", resume=True)
    assert found.complete
    assert not path.exists()


def test_no_key_is_ignored_in_silence(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEPAGE_KEY_FILE", "key")
    with pytest.raises(InvalidValue, match="does not encrypt any more"):
        AuditStore.create(tmp_path / "out", **HERE)
    assert not Path(tmp_path / "out").exists()
