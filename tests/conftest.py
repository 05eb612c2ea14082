"""What every test shares: one thread per worker, and where the real data lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import seepage as sp

torch.set_num_threads(1)
# The same examples every time, so that a change is judged by itself; SEEPAGE_EXPLORE=1 draws more.
settings.register_profile("seepage", derandomize="SEEPAGE_EXPLORE" not in os.environ)
settings.load_profile("seepage")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data, or a skip that says why."""
    named = os.environ.get("SEEPAGE_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(named) if named else beside
    if not root.is_dir():
        pytest.skip("real data not found: set SEEPAGE_DATA to its folder")
    return root


@pytest.fixture(scope="session")
def photos() -> sp.Batch:
    """Four bundled photos at 32 pixels."""
    return sp.data.bundled("photos", size=4)
