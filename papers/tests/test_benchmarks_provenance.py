"""What is kept of how a benchmark was run."""

import json
import sys

import pytest
from benchmarks.provenance import commit, save


@pytest.fixture(autouse=True)
def unasked():
    """The commit is asked for once in a process; here, once in a test."""
    commit.cache_clear()
    yield
    commit.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ("--scale small --out a --keep b 000-table5", "--scale small 000-table5"),
        ("--part table --sources a b c --out d", "--part table"),
        ("003-fig6 --sheets a --device cpu", "003-fig6 --device cpu"),
        ("--out a", ""),
    ],
)
def test_a_command_is_kept_without_the_folders_of_one_machine(
    arguments, kept, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["x", *arguments.split()])
    monkeypatch.setenv("SEEPAGE_COMMIT", "abc")
    found = json.loads(save("it", "cpu", {"rows": []}, tmp_path).read_text())
    assert found["command"].split()[3:] == kept.split()
    assert found["commit"] == "abc"
