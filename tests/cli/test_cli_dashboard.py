"""`seepage dashboard`: many audits on one page that a browser opens."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import seepage
from seepage.audit import load_audit
from seepage.cli import app
from seepage.cli._report_command import _find_audits, _find_begin
from seepage.core.errors import DataNotFound, InvalidValue

SPEC = """
controls = false
metrics = ["psnr"]
title = "Model NAME"
[[scenario]]
data = { name = "digits", people = 2, start = 0 }
models = { name = "mlp", hidden = [8] }
attacks = { name = "analytic_fc" }
defenses = [{ name = "AddGaussian", std = NOISE }]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two versions of a model, the first with less noise, and a folder that is no audit."""
    folder = tmp_path_factory.mktemp("versions")
    for day, (name, noise) in enumerate((("old", "0.0"), ("new", "100.0"))):
        spec = folder / f"{name}.toml"
        spec.write_text(SPEC.replace("NAME", name).replace("NOISE", noise), encoding="utf-8")
        out = folder / "audits" / name
        done = CliRunner().invoke(app, ["audit", str(spec), "--out", str(out), "--quiet"])
        assert done.exit_code == 0, done.output
        # Later copies are not later audits.
        os.utime(out / "plan.json", (1e9 - 86400 * day,) * 2)
    (folder / "audits" / "broken").mkdir()
    (folder / "audits" / "broken" / "plan.json").write_bytes(b"no plan")
    return folder


def test_one_page_has_all_audits_in_time_and_says_what_it_could_not_read(folder):
    done = CliRunner().invoke(app, ["dashboard", str(folder)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("2 audits")
    page = (folder / "dashboard.html").read_text(encoding="utf-8")
    assert "new: " in page.partition("</h1>")[0], "the latest is the headline"
    assert page.index(">new<") < page.index(">old<"), "the latest first"
    assert 'href="audits/old/report.html"' in page
    assert "2 of 2, 60.0" in page
    assert "broken: " in page
    assert "data:image" not in page, "no private input"


@pytest.mark.parametrize("said", [{}, {"begun": "yesterday"}, {"begun": {}}])
def test_an_audit_that_does_not_say_when_it_began_is_as_old_as_its_file(folder, said):
    audit = replace(load_audit(folder / "audits" / "old"), environment=said)
    assert _find_begin(folder / "audits" / "old", audit).year == 2001


def test_a_share_of_zero_is_called_safe_only_if_the_attack_was_strong(folder):
    CliRunner().invoke(app, ["dashboard", str(folder)])
    page = (folder / "dashboard.html").read_text(encoding="utf-8")
    assert '<span class="trace">0 of 2' in page
    assert '<span class="safe">' not in page


def test_a_folder_without_audits_is_one_sentence(tmp_path):
    with pytest.raises(DataNotFound, match="no audit in"):
        CliRunner().invoke(app, ["dashboard", str(tmp_path)], catch_exceptions=False)


def test_links_are_not_followed(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder / "audits")
    with pytest.raises(DataNotFound):
        _find_audits([tmp_path])


@pytest.mark.parametrize("options", [["--serve"], ["--port", "8350"], ["--serve", "--port", "0"]])
def test_the_server_is_gone_and_one_sentence_names_the_page(folder, tmp_path, options):
    out = tmp_path / "dashboard.html"
    with pytest.raises(InvalidValue, match=r"removed.* open its dashboard\.html"):
        CliRunner().invoke(
            app, ["dashboard", str(folder), "--out", str(out), *options], catch_exceptions=False
        )
    assert not out.exists()
    assert "--serve" not in CliRunner().invoke(app, ["dashboard", "--help"]).output


def test_no_part_of_the_package_opens_a_port():
    package = Path(seepage.__file__).parent
    names = ("http.server", "socketserver", "wsgiref", "import socket")
    found = [
        path.name
        for path in package.rglob("*.py")
        if any(name in path.read_text(encoding="utf-8") for name in names)
    ]
    assert not found
