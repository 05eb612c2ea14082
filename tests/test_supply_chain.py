"""What is imported is declared, and the lock file has what is tested."""

import ast
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
# Modules that are not named like their packages.
PACKAGES = {"PIL": "pillow", "pytorch_lightning": "lightning", "seepage_papers": "seepage-papers"}


def read_declared(file):
    """The packages that a project needs, its own name, and those of its extras."""
    project = tomllib.loads((ROOT / file).read_text())["project"]
    extras = [one for extra in project.get("optional-dependencies", {}).values() for one in extra]
    needed = {canonicalize_name(Requirement(one).name) for one in project["dependencies"]}
    return {project["name"], *needed}, {canonicalize_name(Requirement(one).name) for one in extras}


def find_imports(folder):
    """The packages of others that are imported in a folder, each with a file that does."""
    found = {}
    for file in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in (name.partition(".")[0] for name in names):
                if name not in sys.stdlib_module_names:
                    found.setdefault(canonicalize_name(PACKAGES.get(name, name)), file.name)
    return found


def test_every_package_that_is_imported_is_declared():
    needed, extras = read_declared("pyproject.toml")
    found = find_imports("src/seepage")
    assert {"torch", "pillow", "typer", "flwr"} <= found.keys(), "the search finds what is there"
    assert not {name: file for name, file in found.items() if name not in needed | extras}
    assert needed <= found.keys(), "what is declared is imported"


def test_every_package_that_the_papers_import_is_declared():
    ours, _ = read_declared("pyproject.toml")
    theirs, _ = read_declared("papers/pyproject.toml")
    found = find_imports("papers/src")
    assert not {name: file for name, file in found.items() if name not in ours | theirs}


def read_lock():
    blocks = re.split(r"\n(?=[a-z])", (ROOT / "requirements.lock").read_text())[1:]
    return {
        block.split("==")[0]: (
            re.search(r"==(\S+)", block)[1],
            re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block),
        )
        for block in blocks
    }


def read_pins():
    found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): number for name, number in found}


def read_roots():
    """What the package and its tests need, and what builds it."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = whole["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [Requirement(one) for one in [*needed, *whole["build-system"]["requires"], "editables"]]


def test_the_lock_has_every_requirement_in_the_version_that_is_tested():
    locked, pins = read_lock(), read_pins()
    for root in read_roots():
        name = canonicalize_name(root.name)
        number, hashes = locked[name]
        assert number == pins.get(name, number), name
        assert number in root.specifier, name
        assert hashes, name
    assert all(hashes for _, hashes in locked.values())


def test_the_lock_has_wheels_for_both_processors():
    # torch has no wheel that fits any processor.
    assert len(read_lock()["torch"][1]) > 4
