"""What every test shares: one thread per worker, and where the real data lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data, or a skip that says why."""
    named = os.environ.get("SEEPAGE_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    root = Path(named) if named else beside
    if not root.is_dir():
        pytest.skip("real data not found: set SEEPAGE_DATA to its folder")
    return root
