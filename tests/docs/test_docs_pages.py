"""Every page of the documentation does what it says: files are written, Python and commands run."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from seepage.cli import app

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# The guide is one program from top to bottom and has a test of its own.
PAGES = sorted(
    page
    for page in (ROOT / "docs").glob("*.md")
    if page.name != "guide.md"
    and any(b[1] in ("python", "bash") for b in BLOCK.finditer(page.read_text(encoding="utf-8")))
)
EXTRA = re.compile(r"^<!-- needs (\w+) -->$", re.MULTILINE)


def run_command(line: str) -> None:
    command, _, comment = line.partition("  # ")
    wanted = re.search(r"exits with (\d)", comment)
    done = CliRunner().invoke(app, command.split()[1:])
    assert done.exit_code == (int(wanted[1]) if wanted else 0), f"{line}\n{done.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch, capsys):
    written = page.read_text(encoding="utf-8")
    for package in EXTRA.findall(written):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    module = ModuleType(page.stem)
    monkeypatch.setitem(sys.modules, page.stem, module)
    for language, title, code in (block.groups() for block in BLOCK.finditer(written)):
        if title:
            (tmp_path / title).write_text(code, encoding="utf-8")
        if language == "python":
            exec(compile(code, page.name, "exec"), vars(module))
        if language == "bash":
            for line in code.splitlines():
                if line.startswith("seepage "):
                    run_command(line)


def test_the_pages_that_users_ask_for_have_code_that_runs():
    assert {"index", "threats", "gate", "add_an_attack"} <= {page.stem for page in PAGES}


def test_the_site_builds_without_a_warning(tmp_path):
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run(
        [*command, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists()
