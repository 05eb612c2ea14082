"""What happens to the folder of an audit while it runs: moved, removed, replaced, or full."""

import shutil
import sys

import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.audit._run_spec import ProgressListener
from seepage.cli import app
from seepage.core._checkpoint import Checkpoints, checkpointing
from seepage.core.errors import DataNotFound

SPEC = {
    "controls": False,
    "metrics": ["psnr"],
    "scenario": {
        "data": {"name": "digits", "people": 4},
        "models": {"name": "mlp", "hidden": [8]},
        "threats": {"knows_labels": True},
        "attacks": {"name": "analytic_fc"},
    },
}


class After(ProgressListener):
    """Does something to the folder after so many cases."""

    def __init__(self, cases, act):
        self.left, self.act = cases, act

    def finished(self, record):
        self.left -= 1
        if self.left == 0:
            self.act()


def list_files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def empty(out):
    shutil.rmtree(out)
    out.mkdir()


def replace(out):
    out.rename(out.parent / "mine")
    sp.audit.run({**SPEC, "title": "another"}, out, device="cpu")


CHANGES = {
    "moved": lambda out: out.rename(out.parent / "moved"),
    "removed": shutil.rmtree,
    "emptied": empty,
    "replaced": replace,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_that_is_taken_away_stays_away_and_one_sentence_says_so(change, tmp_path):
    out, left = tmp_path / "out", {}

    def act():
        CHANGES[change](out)
        left.update(list_files(out))

    with pytest.raises(DataNotFound, match="moved, removed or replaced while the audit"):
        sp.audit.run(SPEC, out, progress=After(2, act), device="cpu")
    assert list_files(out) == left, "nothing was written to what is there now"
    assert out.exists() == (change in ("emptied", "replaced"))


def test_an_audit_goes_on_where_its_folder_was_moved_to(tmp_path):
    out, moved = tmp_path / "out", tmp_path / "moved"
    with pytest.raises(DataNotFound):
        sp.audit.run(SPEC, out, progress=After(2, lambda: out.rename(moved)), device="cpu")
    found = sp.audit.run(SPEC, moved, resume=True, device="cpu")
    assert found.complete
    assert not found.damaged
    assert not list(moved.rglob("*.claim"))


def test_a_checkpoint_does_not_bring_a_removed_folder_back(tmp_path):
    out = tmp_path / "out"
    with checkpointing(out / "checkpoints"):
        shutil.rmtree(out)
        with pytest.raises(FileNotFoundError):
            Checkpoints(out / "checkpoints").save("a" * 24, [])
    assert not out.exists()


# Takes the folder away when a worker has begun, and before it attacks.
MOVING = """
from multiprocessing import parent_process
from pathlib import Path
from torch import nn

def net():
    if parent_process() is not None and Path("out").exists():
        Path("out").rename("moved")
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""


def test_a_worker_that_begins_late_does_not_bring_a_moved_folder_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moving.py").write_text(MOVING)
    spec = CARELESS_SPEC.replace("careless", "moving")
    (tmp_path / "spec.toml").write_text(spec)
    command = ["audit", "spec.toml", "--out", "out", "--workers", "2"]
    done = CliRunner().invoke(app, command)
    sys.modules.pop("moving", None)
    assert isinstance(done.exception, DataNotFound), done.output
    assert not (tmp_path / "out").exists()


# Removes what is stored so far, once, while a later case runs.
CARELESS = """
import shutil
from pathlib import Path
from torch import nn

class Careless(nn.Sequential):
    def forward(self, inputs):
        if list(Path("out/cases").glob("*.safetensors")) and not Path("once").exists():
            Path("once").touch()
            [shutil.rmtree(f"out/{name}") for name in ("cases", "inputs")]
        return super().forward(inputs)

def net():
    return Careless(nn.Flatten(), nn.Linear(784, 10))
"""
CARELESS_SPEC = """
controls = false
metrics = ["psnr"]
[[scenario]]
data = { name = "digits", people = 3 }
models = { name = "careless:net" }
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
"""


def test_tensors_that_are_removed_during_a_run_are_told_and_marked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "careless.py").write_text(CARELESS)
    (tmp_path / "spec.toml").write_text(CARELESS_SPEC)
    command = ["audit", "spec.toml", "--out", "out"]
    done = CliRunner().invoke(app, command)
    sys.modules.pop("careless", None)
    assert done.exit_code == 1, done.output
    [said] = [line for line in done.output.splitlines() if "since they were written" in line]
    assert "1 file, " in said
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "1 case of 3 not run yet" in page
    assert page.count("<td>reconstructed</td>") == 2
    mended = CliRunner().invoke(app, [*command, "--resume"])
    sys.modules.pop("careless", None)
    assert mended.exit_code == 0, mended.output
