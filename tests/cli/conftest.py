"""What tests of commands share."""

import sys

import pytest

from seepage.cli import main


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run a command that ends with exit code 2, and return the one line it says."""

    def refused(*arguments):
        monkeypatch.setattr(sys, "argv", ["seepage", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        assert stopped.value.code == 2
        [line] = said.err.splitlines()
        assert line.startswith("seepage: ")
        assert "Traceback" not in said.err + said.out
        return line

    return refused


@pytest.fixture
def wide_place(tmp_path, monkeypatch):
    """A folder to run in, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path
