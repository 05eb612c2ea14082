"""Nothing is imported from the current folder but modules that the user names."""

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest
from PIL import Image
from typer.testing import CliRunner

import seepage
from seepage.cli import app

PLANTED = """
with open({marker!r}, "a") as file:
    file.write({name!r} + " ")
raise ImportError("planted")
"""
NETS = """
import blocks
from torch import nn

def net(classes=2):
    return nn.Sequential(nn.Flatten(), blocks.linear(classes))
"""
BLOCKS = """
from torch import nn

def linear(classes):
    return nn.Linear(3072, classes)
"""
SPEC = """
controls = false
metrics = ["psnr"]
[[scenario]]
data = {{ name = {data!r}, people = 1 }}
models = {{ name = {model!r} }}
attacks = {{ name = "analytic_fc" }}
"""


@pytest.fixture
def received(tmp_path):
    """A folder with a planted module for every one that Python or a package has."""
    folder, marker = tmp_path / "received", tmp_path / "imported"
    folder.mkdir()
    # What Python itself imports for -m before a package has a say.
    (tmp_path / "probe.py").write_text("import sys; print(*sys.modules)")
    probe = [sys.executable, "-m", "probe"]
    python = subprocess.run(probe, cwd=tmp_path, capture_output=True, text=True, check=True)
    optional = {"olefile", "lpips", "timm", "pydicom", "defusedxml", "cupy", "matplotlib"}
    for name in {*sys.stdlib_module_names, *packages_distributions(), *optional}:
        if name.isidentifier() and name not in ("seepage", *python.stdout.split()):
            (folder / f"{name}.py").write_text(PLANTED.format(marker=str(marker), name=name))
    return folder


@pytest.fixture
def run(tmp_path, received):
    """Run the program there, and require that no planted module was imported."""
    launcher = tmp_path / "bin" / "seepage"
    launcher.parent.mkdir()
    launcher.write_text("from seepage.__main__ import main\nif __name__ == '__main__': main()\n")
    path = [os.path.dirname(seepage.__path__[0]), *filter(os.path.isabs, sys.path)]  # noqa: PTH120

    def run(*arguments, start=(str(launcher),), expected=0):
        done = subprocess.run(
            [sys.executable, *start, *arguments],
            cwd=received,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        marker = tmp_path / "imported"
        assert not marker.exists(), f"planted modules ran: {marker.read_text()}"
        assert done.returncode == expected, done.stdout + done.stderr

    return run


@pytest.fixture
def mine(received):
    """A spec of pictures there, and of a network of mine that imports another module of mine."""
    (received / "spec.toml").write_text(SPEC.format(data="folder:pictures", model="nets:net"))
    (received / "nets.py").write_text(NETS)
    (received / "blocks.py").write_text(BLOCKS)
    for person in range(4):
        folder = received / "pictures" / str(person % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (60 * person, 20, 99)).save(folder / f"{person}.png")


def test_a_received_audit_is_gone_on_with_without_its_modules(received, run):
    spec = received.parent / "spec.toml"
    spec.write_text(SPEC.format(data="digits", model="mlp"))
    begun = received.parent / "begun"
    done = CliRunner().invoke(app, ["audit", str(spec), "--out", str(begun), "--quiet"])
    assert done.exit_code == 0, done.output
    shutil.copytree(begun, received, dirs_exist_ok=True)
    run("audit", "--out", ".", "--resume", "--quiet", start=("-m", "seepage"))


@pytest.mark.slow
@pytest.mark.usefixtures("mine")
def test_workers_import_the_network_that_is_named_and_nothing_else(run):
    run("audit", "spec.toml", "--workers", "2", "--out", "out", "--quiet")


@pytest.mark.slow
@pytest.mark.usefixtures("mine")
def test_workers_of_ray_import_the_network_that_is_named_and_nothing_else(run):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    run("audit", "spec.toml", "--executor", "ray", "--out", "out", "--quiet")
