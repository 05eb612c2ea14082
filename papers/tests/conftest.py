"""What every test shares: one thread per worker, and where the real data lie."""

from __future__ import annotations

import os
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


@pytest.fixture(scope="session")
def small_table():
    """Read a table of two rows, the first with a cause, of one measure and these numbers."""

    def read(measure="psnr", values="[[20.0], [20.0]]"):
        written = _TABLE.replace("MEASURE", measure).replace("VALUES", values)
        return parse_table("999-table0", written)

    return read
