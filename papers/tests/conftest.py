"""What every test shares: one thread per worker, and where the real data lie."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seepage_papers.reading import parse_table

torch.set_num_threads(1)

_TABLE = """
title = "T"
paper = "geiping2020inverting"
place = "Table 0"
claim = "C."
[scenario]
data = { name = "photos" }
models = { name = "mlp" }
attacks = { name = "analytic_fc" }
[[rows]]
label = "$steps steps"
cause = "Few steps."
[[rows]]
label = "b"
[[published]]
measure = "MEASURE"
values = VALUES
[scale.smoke]
steps = 3
"""


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data, or a skip that says why."""
    named = os.environ.get("SEEPAGE_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    root = Path(named) if named else beside
    if not root.is_dir():
        pytest.skip("real data not found: set SEEPAGE_DATA to its folder")
    return root


_TRAIN = """
import sys, torch
from pathlib import Path
from seepage_papers.place import Place
from seepage_papers.trained import trained
torch.set_num_threads(1)
for width in (2, 4):
    schooling = {"epochs": 2, "examples": 64, "held_out": 16, "batch_size": 8}
    model = {"name": "resnet18", "width": width, "schooling": schooling}
    wanted = {"data": {"name": "mnist", "pixels": 8}, "models": model}
    trained(wanted, Place(folder=Path(sys.argv[1])))
"""


@pytest.fixture(scope="session")
def narrow_training(data_root, tmp_path_factory):
    """Skip where torch itself dies of training narrow convolutions with one thread.

    torch 2.13 writes beyond its memory there on some processors; no Python code can.
    """
    words = [sys.executable, "-c", _TRAIN, str(tmp_path_factory.mktemp("narrow"))]
    given = {**os.environ, "SEEPAGE_DATA": str(data_root)}
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        pytest.skip(
            f"torch {torch.__version__} dies here of training narrow convolutions (signal "
            f"{-done.returncode}: {done.stderr.strip().partition(chr(10))[0]})"
        )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def small_table():
    """Read a table of two rows, the first with a cause, of one measure and these numbers."""

    def read(measure="psnr", values="[[20.0], [20.0]]"):
        written = _TABLE.replace("MEASURE", measure).replace("VALUES", values)
        return parse_table("999-table0", written)

    return read
