"""The design that tools can hold: floors, lightness, and an adversary that cannot see the truth."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seepage

PACKAGE = Path(seepage.__file__).parent
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
PAPERS = Path(__file__).parents[1] / "papers" / "src"

# Who may see truth and guess side by side.
SIGHTED = {"audit", "rehearsal", "scoring", "testing", "report", "cli", "step"}
HEAVY = {
    "PIL",
    "flwr",
    "lpips",
    "matplotlib",
    "opacus",
    "ray",
    "rich",
    "scipy",
    "skimage",
    "torchvision",
    "transformers",
    "typer",
}


def run(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def lint(tmp_path):
    """Lint a copy of the package, after a line was added to one of its modules."""
    pytest.importorskip("importlinter", reason="import-linter is a development dependency")
    shutil.copytree(
        PACKAGE, tmp_path / "src" / "seepage", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(PYPROJECT, tmp_path)

    def lint(module=None, line=""):
        if module is not None:
            with (tmp_path / "src" / "seepage" / module).open("a") as text:
                text.write(f"\n{line}\n")
        command = "from importlinter.cli import lint_imports_command as lint; lint()"
        path = os.pathsep.join([str(tmp_path / "src"), str(PAPERS)])
        result = run("-c", command, "--no-cache", cwd=tmp_path, PYTHONPATH=path)
        return result.returncode, result.stdout

    return lint


def test_the_floors_hold_as_they_are(lint):
    code, said = lint()
    assert code == 0, said
    assert "0 broken" in said


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        (
            "attacks/linear_systems/_analytic_fc.py",
            "from seepage.scoring import score",
            "The adversary never sees the truth",
        ),
        ("core/_rng.py", "from seepage.clients import Client", "Floors import downward only"),
        (
            "cli/_app.py",
            "from seepage_papers.reading import names",
            "The product does not know the papers",
        ),
        (
            "core/_chain.py",
            "from seepage.defenses._clip import Clip",
            "Siblings do not import each other in a circle",
        ),
    ],
)
def test_a_forbidden_import_breaks_its_contract(lint, module, line, contract):
    code, said = lint(module, line)
    assert code != 0
    assert f"{contract} BROKEN" in said


def imported(path):
    """Every module name that a file imports, with the names taken from it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(wanted):
    """The packages with a file that imports such a name, and where."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        floor = path.relative_to(PACKAGE).parts[0]
        if any(wanted(name) for name in imported(path)):
            found.setdefault(floor, []).append(path.name)
    return found


def test_only_the_sighted_import_scoring():
    def scoring(name):
        return name in ("seepage.score", "seepage.scoring") or name.startswith("seepage.scoring.")

    found = importers(scoring)
    assert set(found) <= SIGHTED | {"__init__.py"}, found
    assert {"audit", "testing"} <= set(found), "the search finds what is there"


def test_nothing_below_audits_imports_the_root_which_holds_score():
    # Audits name the version, and may score.
    assert set(importers(lambda name: name == "seepage")) <= {"__init__.py", "audit", "cli"}


def test_importing_seepage_pulls_in_nothing_heavy(tmp_path):
    program = (
        "import sys, torch; before = set(sys.modules); import seepage; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    result = run("-W", "error", "-c", program, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "seepage" in result.stdout.split()
    assert not HEAVY & set(result.stdout.split())
