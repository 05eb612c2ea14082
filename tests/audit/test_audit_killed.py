"""An audit that is killed again and again ends where an undisturbed one does."""

import itertools
import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from seepage.audit import (
    AuditStore,
    Outcome,
    Record,
    SpecSource,
    build_spec,
    load_audit,
    run_case,
)
from seepage.core._construct import Component
from seepage.core.errors import InvalidValue

SPEC = """controls = false
metrics = ["psnr"]
seeds = [0, 1]
[[scenario]]
data = { name = "digits", people = 3, start = 0 }
models = { name = "mlp", hidden = [8] }
threats = { knows_labels = true }
attacks = [{ name = "analytic_fc" }, { name = "inverting_gradients", steps = 60, restarts = 1 }]
defenses = [{ name = "AddGaussian", std = 0.001 }]
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_records(
    tmp_path, monkeypatch, server
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "counted.py").write_text(COUNTED)
    cases = build_spec(SpecSource.read(tmp_path / "spec.toml")).cases
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


def planned(*names):
    """Cases of which only the store knows anything, so that no child has to compute."""
    truth = {"inputs": torch.zeros(1, 1)}
    who = SimpleNamespace(digest="people", tensors=truth, words=())
    return [SimpleNamespace(id=n, description=n, identity={"is": n}, target=who) for n in names]


EARLIER, NEW = planned("a", "b", "c"), planned("b", "d")


def begin(path, cases=NEW, **options):
    return AuditStore.create(path, title="t", spec="s", environment={}, cases=cases, **options)


def finish(path, cases):
    """Run what is missing, as --resume does, and require an audit that is whole."""
    with AuditStore.resume(path, cases=cases) as store:
        done = {record.case for record in store.records()}
        for case in cases:
            if case.id not in done:
                assert store.claim(case)
                it = Component("it")
                record = Record("d", (0,), "m", it, (it,), it, it, 0, case=case.id, truth="people")
                store.add(case, Outcome(record, torch.zeros(1, 1), torch.zeros(1, 1)))
    found = load_audit(path)
    assert found.complete
    assert found.damaged == ()
    assert all(found.guess(r) is not None and found.truth(r) is not None for r in found.records)
    assert (path / "spec.toml").read_text() == "s"
    assert (path / "environment.json").read_text() == "{}\n"
    assert not [p for p in path.rglob("*") if p.suffix in (".partial", ".claim")]


LOOKS = {
    *("stat", "lstat", "fstat", "listdir", "scandir", "getpid", "fspath", "getcwd", "read"),
    *("fileno", "readlink"),
}


def touches_the_disk(function):
    """Whether a C function of Python may change a file."""
    module = getattr(function, "__module__", None) or ""
    owner = type(getattr(function, "__self__", None)).__module__
    return function.__name__ not in LOOKS and bool({module, owner} & {"posix", "fcntl", "_io"})


def state(folder):
    """What is on the disk, but for the number of the process in the lock."""
    if not folder.exists():
        return None
    return tuple(
        (str(path.relative_to(folder)), path.is_file() and _held(path))
        for path in sorted(folder.rglob("*"))
    )


def _held(path):
    return path.stat().st_size > 0 if path.suffix == ".lock" else path.read_bytes()


def moments(folder, work):
    """The calls of some work before which the disk is as before no earlier call."""
    calls, seen, found = itertools.count(1), set(), []

    def look(frame, event, function):
        if event == "c_call" and touches_the_disk(function):
            call, now = next(calls), state(folder)
            if now not in seen:
                seen.add(now)
                found.append(call)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        store = work()
    finally:
        sys.setprofile(before)
    store.close()
    return found


def kill_at(moment, work):
    """Do work in a process that dies before its n-th call that touches the disk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child needs none
        child = os.fork()
    if child == 0:
        calls = itertools.count(1)

        def count(frame, event, function):
            if event == "c_call" and touches_the_disk(function) and next(calls) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(count)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it ended before it was killed"


posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@posix
def test_a_directory_can_be_used_whenever_its_first_audit_was_killed_while_it_began(tmp_path):
    whole, begun = tmp_path / "whole", 0
    kills = moments(whole, lambda: begin(whole))
    for moment in kills:
        out, other = tmp_path / f"{moment}" / "out", tmp_path / f"{moment}" / "other"
        kill_at(moment, lambda out=out: begin(out))
        if out.exists():
            shutil.copytree(out, other)
        begin(other, overwrite=True).close()
        finish(other, NEW)
        if (out / "plan.json").exists():
            begun += 1
            with pytest.raises(InvalidValue, match="already holds an audit; --resume it"):
                begin(out)
        else:
            begin(out).close()
        finish(out, NEW)
    assert len(kills) - begun >= 4, "too few kills came before the plan was there"
    assert begun >= 4, "too few kills came after it"


@pytest.mark.slow
@posix
def test_a_directory_can_be_used_whenever_an_audit_was_killed_while_it_replaced_another(tmp_path):
    earlier = tmp_path / "earlier"
    begin(earlier, EARLIER).close()
    finish(earlier, EARLIER)
    mine = ("notes.txt", "cases/notes.txt", "inputs/mine.safetensors")
    for name in mine:
        (earlier / name).write_text("mine")
    whole = shutil.copytree(earlier, tmp_path / "whole")
    sizes = set()
    for moment in moments(whole, lambda: begin(whole, overwrite=True)):
        out, other = tmp_path / f"{moment}", tmp_path / f"{moment}-other"
        shutil.copytree(earlier, out)
        kill_at(moment, lambda out=out: begin(out, overwrite=True))
        shutil.copytree(out, other)
        begin(other, overwrite=True).close()
        finish(other, NEW)
        with pytest.raises(InvalidValue, match="already holds an audit; --resume it"):
            begin(out)
        found = load_audit(out)
        sizes.add((len(found.planned), len(found.records)))
        finish(out, NEW if len(found.planned) == len(NEW) else EARLIER)
        for name in mine:
            assert (out / name).read_text() == (other / name).read_text() == "mine"
    within = {(3, 2), (3, 1), (3, 0)}
    assert sizes - within == {(3, 3), (2, 0)}, "before and after the replacement"
    assert sizes & within, "within it"


@posix
def test_of_audits_begun_together_one_runs_and_the_others_are_told_who_is_there(tmp_path):
    for attempt in range(5):
        out = tmp_path / f"{attempt}"
        said, tell = os.pipe()
        done, end = os.pipe()
        children = []
        for _ in range(4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                children.append(os.fork())
            if children[-1] == 0:
                os.close(end)
                try:
                    begin(out)
                    os.write(tell, b"begun\n")
                except InvalidValue as error:
                    os.write(tell, f"{error}\n".encode())
                os.read(done, 1)  # the one that began holds the directory until all have tried
                os._exit(0)
        told = []
        with os.fdopen(said) as lines:
            told = [next(lines) for _ in children]
        for pipe in (tell, done, end):
            os.close(pipe)
        for child in children:
            os.waitpid(child, 0)
        assert told.count("begun\n") == 1
        assert sum("is in use by process" in line for line in told) == 3, told
        finish(out, NEW)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="traces a process")
def test_chaos_loses_nothing(tmp_path):
    # A process of its own: this one may have threads, which do not survive a fork.
    out, root = tmp_path / "counts.json", Path(__file__).parents[2]
    wanted = ["--kills", "12", "--minutes", "3", "--seed", "5", "--out", str(out)]
    ended = subprocess.run(
        [sys.executable, "-m", "scripts.chaos", *wanted],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert found["audits"] >= 1
    assert found["faults"]["kill_at_write"] >= 5
