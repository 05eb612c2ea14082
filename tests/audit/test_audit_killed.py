"""An audit that is killed again and again ends where an undisturbed one does."""

import random
import runpy
import sys
import time
from dataclasses import replace
from multiprocessing import get_context

import pytest

from seepage.audit import Source, build_spec, load_audit, run_case

SPEC = """
metrics = ["psnr"]
seeds = [0, 1]
[[scenario]]
data = { name = "digits", people = 3 }
models = { name = "mlp", hidden = [8] }
threats = { knows_labels = true }
attacks = [{ name = "analytic_fc" }, { name = "inverting_gradients", steps = 60, restarts = 1 }]
defenses = [{ name = "AddGaussian", std = 0.001 }]
"""

# The command, noting every case as it begins.
COUNTED = """
import os, sys
from seepage.audit import execution
from seepage.cli import main

run = execution.run_case

def counted(case):
    with open("begun", "a") as begun:
        begun.write(case.id + "\\n")
    return run(case)

execution.run_case = counted
sys.stdout = sys.stderr = open(os.devnull, "w")
sys.argv = ["seepage", "audit", "spec.toml", "--out", "out", "--resume"]
main()
"""
KILLS = 6


def timeless(record):
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


@pytest.fixture
def server():
    """A server that has imported everything once and forks a process per run."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["seepage.cli"])
    return context


def begun(place):
    path = place / "begun"
    return path.read_text().split() if path.exists() else []


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_records(
    tmp_path, monkeypatch, server
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "counted.py").write_text(COUNTED)
    cases = build_spec(Source.read(tmp_path / "spec.toml")).cases
    began = time.perf_counter()
    truths = tuple(timeless(run_case(case).record) for case in cases)
    whole = time.perf_counter() - began

    moments = random.Random(0)
    finished: set[str] = set()
    partly = 0
    for _ in range(KILLS):
        before = len(begun(tmp_path))
        process = server.Process(target=runpy.run_path, args=("counted.py",))
        process.start()
        # One or two cases further, so that it gets somewhere; then at any moment.
        further = before + moments.randint(1, 2)
        while len(begun(tmp_path)) < further and process.is_alive():
            time.sleep(0.005)
        time.sleep(moments.random() * whole / len(cases))
        process.kill()
        process.join()
        process.close()
        assert finished.isdisjoint(begun(tmp_path)[before:]), "a finished case ran again"
        finished = {record.case for record in load_audit(tmp_path / "out").records}
        partly += 0 < len(finished) < len(cases)
    assert partly >= 3, "the kills came too late to say anything"
    process = server.Process(target=runpy.run_path, args=("counted.py",))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()

    result = load_audit(tmp_path / "out")
    assert tuple(map(timeless, result.records)) == truths
    assert result.damaged == ()
    assert all(result.guess(record) is not None for record in result.records)
    # A case begins once, and once more for each kill that found it unfinished.
    assert set(begun(tmp_path)) == {case.id for case in cases}
    assert len(begun(tmp_path)) <= len(cases) + KILLS
