"""What every test shares: one thread per worker, and where the real data lie.

`SEEPAGE_JITTER=1 pytest` (or 2, 3, ...) imitates another machine's rounding: images and signals are
that many rounding steps darker, and convolutions run without oneDNN. Add
`OPENBLAS_CORETYPE=CORTEXA57` (ARM) or `=PRESCOTT` (x86) for other matrix products in double
precision. A test that fails only then depends on how a machine rounds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import seepage as sp
from seepage.data import Dataset
from seepage.domains import Image, Signal

torch.set_num_threads(1)
# The key of whoever runs the tests is left alone.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="seepage-tests-")
# No test pulls the plug of the machine, and each call waits for the disk.
os.fsync = lambda descriptor: None
# The same examples every time, so that a change is judged by itself; SEEPAGE_EXPLORE=1 draws more.
settings.register_profile("seepage", derandomize="SEEPAGE_EXPLORE" not in os.environ)
settings.load_profile("seepage")


def imitate_other_rounding(steps: int) -> None:
    """Make every float32 image and signal `steps` rounding steps smaller, from here on."""
    torch.backends.mkldnn.enabled = False
    take = Dataset.take

    def take_perturbed(self: Dataset, indices: Sequence[int] | torch.Tensor) -> sp.Batch:
        batch = take(self, indices)
        if not isinstance(self.domain, Image | Signal):
            return batch
        return sp.Batch(batch.inputs * (1 - steps * 2.0**-23), batch.labels)

    Dataset.take = take_perturbed  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow.txt as slow, before `-m` chooses."""
    lines = Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").splitlines()
    slow = {line for line in lines if not line.startswith("#")}
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


if "SEEPAGE_JITTER" in os.environ:
    imitate_other_rounding(int(os.environ["SEEPAGE_JITTER"]))


@pytest.fixture(autouse=True, scope="module")
def seed_modules() -> None:
    """Draw what a module's fixtures draw alike in every order of the tests."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def seed_tests(seed_modules: None) -> None:
    """Draw what a test draws alike in every order of the tests."""
    torch.manual_seed(0)


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
