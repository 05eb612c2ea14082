"""`seepage dashboard`: many audits on one page, as a file or served to this machine."""

import os
import socket
import threading
from dataclasses import replace
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from seepage.audit import load_audit
from seepage.cli import app
from seepage.cli.dashboard_command import _find_audits, _find_begin, _make_handler
from seepage.core.errors import DataNotFound

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
        os.utime(out / "audit.sqlite", (1e9 - 86400 * day,) * 2)
    (folder / "audits" / "broken").mkdir()
    (folder / "audits" / "broken" / "audit.sqlite").write_bytes(b"no database")
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


@pytest.fixture
def ask(folder):
    """Ask a running dashboard for a page, as a browser would."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _make_handler([folder])) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def ask(path, host="127.0.0.1"):
            with socket.create_connection(("127.0.0.1", server.server_port)):
                connection = HTTPConnection("127.0.0.1", server.server_port)
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            return answer.status, body

        yield ask
        server.shutdown()
        thread.join()


def test_the_server_has_the_page_and_the_reports_it_links_to_and_nothing_else(ask):
    status, page = ask("/")
    assert status == 200
    assert 'href="/1"' in page
    assert ask("/1")[0] == 200
    for path in ("/9", "/../spec.toml", "/audits/old/audit.sqlite", "/-1", "/%2e%2e"):
        assert ask(path)[0] == 404


def test_another_name_for_this_machine_is_refused(ask):
    assert ask("/", host="evil.example")[0] == 403
