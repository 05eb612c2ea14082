"""The package as people install it: a wheel, used from a folder without the repository."""

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow

OWN = """
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with nothing in it but the unpacked wheel."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed, which builds the wheel")
    made = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(installed, folder, *arguments):
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "seepage", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_is_what_runs_and_names_itself_in_hints(installed, tmp_path):
    where = subprocess.run(
        [sys.executable, "-c", "import seepage; print(seepage.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(installed)
    said = run(installed, tmp_path, "doctor")
    assert "works: a digit came back" in said
    assert "pip install -e" not in said


def test_an_own_network_is_audited_from_another_folder(installed, tmp_path):
    (tmp_path / "hospital.py").write_text(OWN)
    arguments = ["--model", "hospital:build", "--data", "digits", "--people", "1", "--steps", "20"]
    said = run(installed, tmp_path, "audit", *arguments, "--out", "found", "--plain")
    assert "reconstructed" in said
    page = (tmp_path / "found" / "report.html").read_text(encoding="utf-8")
    assert "<style>" in page


def test_the_quickstart_and_the_lists_come_with_the_wheel(installed, tmp_path):
    assert "Quickstart" in run(installed, tmp_path, "audit", "--dry-run")
    assert "inverting_gradients" in run(installed, tmp_path, "list", "attacks")
