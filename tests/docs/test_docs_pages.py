"""Every page of the documentation does what it says: files are written, Python and commands run."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from seepage.cli import app

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    if any(b[1] in ("python", "bash") for b in BLOCK.finditer(page.read_text(encoding="utf-8")))
)
PUBLIC = sorted(
    init.parent.name
    for init in (ROOT / "src" / "seepage").glob("*/__init__.py")
    if init.parent.name not in ("cli", "integrations", "numerics", "probing")
)
EXTRA = re.compile(r"^<!-- needs (\w+) -->$", re.MULTILINE)


# Pages whose searches and audits take longer than a quick test should.
SLOW = {
    *("add_an_attack", "attacks", "choose_a_defense", "ci_gate", "cluster", "defenses", "dossier"),
    *("features", "first_answer", "index", "language_models", "malicious_servers", "opacus"),
    *("own_model", "specs", "threats"),
}


def run_command(line: str) -> str:
    command, _, comment = line.partition("  # ")
    wanted = re.search(r"exits with (\d)", comment)
    done = CliRunner().invoke(app, command.split()[1:])
    assert done.exit_code == (int(wanted[1]) if wanted else 0), f"{line}\n{done.output}"
    return done.output


# What every installation has, and modules that pages write themselves.
PRESENT = {"PIL", "numpy", "seepage", "torch"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_that_imports_an_optional_package_says_so(page):
    written = page.read_text(encoding="utf-8")
    blocks = [block.groups() for block in BLOCK.finditer(written)]
    own = {Path(title).stem for _, title, _ in blocks if title}
    code = "\n".join(code for language, _, code in blocks if language == "python")
    imported = set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE))
    assert imported - PRESENT - own <= set(EXTRA.findall(written))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem in SLOW else (), id=page.stem)
        for page in PAGES
    ],
)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch, capsys):
    written = page.read_text(encoding="utf-8")
    for package in EXTRA.findall(written):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        # What other packages warn of is not ours.
        warnings.simplefilter("ignore")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    printed: list[str] = []
    for language, title, code in (block.groups() for block in BLOCK.finditer(written)):
        if title:
            (tmp_path / title).write_text(code, encoding="utf-8")
        if language == "python":
            exec(compile(code, page.name, "exec"), vars(module))
        if language == "text" and printed:
            missing = [line for line in code.splitlines() if line not in printed]
            assert not missing, "\n".join(["not printed:", *missing, "but:", *printed])
        if language == "bash":
            commands = [line for line in code.splitlines() if line.startswith("seepage ")]
            printed = [said for line in commands for said in run_command(line).splitlines()]


def test_the_pages_that_users_ask_for_have_code_that_runs():
    assert {"index", "tutorial", "threats", "ci_gate", "add_an_attack", "own_model"} <= {
        page.stem for page in PAGES
    }


def test_the_page_on_gates_shows_what_its_commands_print():
    page = (ROOT / "docs" / "how-to" / "ci_gate.md").read_text(encoding="utf-8")
    languages = [block[1] for block in BLOCK.finditer(page)]
    assert [(a, b) for a, b in pairwise(languages) if a == "bash"][:3] == [("bash", "text")] * 3


def test_no_document_is_longer_than_its_readers_have_time():
    how_to = {str(p.relative_to(ROOT)): 120 for p in (ROOT / "docs" / "how-to").glob("*.md")}
    limits = {"README.md": 150, "docs/tutorial.md": 150, **how_to}
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in limits}
    assert {n: length for n, length in lengths.items() if length > limits[n]} == {}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_reference_has_every_public_package(package):
    written = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert f"::: seepage.{package}\n" in written


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run(
        [*command, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists()
