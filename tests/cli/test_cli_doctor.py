"""`seepage doctor`: what is here, what is not, and how to get it."""

import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from seepage.cli import _help_commands as doctor
from seepage.cli import app
from seepage.core import errors
from seepage.core.errors import install_hint

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_doctor_audits_and_names_every_optional_part():
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert re.search(r"works: a digit came back at \d+ dB", done.output)
    for package in doctor._EXTRAS:
        assert package in done.output


def test_every_extra_of_the_project_is_known_to_the_doctor():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert {extra for extra, _ in doctor._EXTRAS.values()} == extras.keys() - {"dev"}


def test_a_missing_part_comes_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(doctor, "_find_version", lambda package: "")
    said = " ".join(CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"}).output.split())
    assert install_hint("lpips") in said
    assert install_hint("lpips").startswith("pip install -e ")
    assert doctor._find_version("no_such_package") == ""


def test_a_broken_installation_ends_with_1(monkeypatch):
    monkeypatch.setattr(doctor, "_audit_a_digit", lambda: 3.0)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "BROKEN" in done.output


def test_an_installed_package_is_extended_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    assert install_hint("dp") == "pip install 'seepage[dp]'"
