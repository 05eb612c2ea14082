"""Names that a reader would obey: no document has control characters or turns of direction."""

import json
import re

import pytest
from PIL import Image
from typer.testing import CliRunner

from seepage.cli import app
from seepage.report._figure import Figure
from seepage.report.page._chart import Axis, Strip, strip_chart
from seepage.report.page._document import Section, document, filter_link, table

# Clears a terminal, and shows what follows from right to left.
HOSTILE = "\x1b[2J\u202e"
SPEC = """
title = "an audit \\u001b[2J\\u202E"
controls = false
metrics = ["psnr"]
[[scenario]]
data = { name = "folder:FOLDER", people = 1 }
models = { name = "mlp", hidden = [8] }
threats = { knows_labels = true }
attacks = [{ name = "analytic_fc" }]
"""


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """An audit of pictures in a folder with such a name."""
    place = tmp_path_factory.mktemp("hostile")
    folder = place / f"pictures{HOSTILE}"
    for person in range(4):
        (folder / str(person % 2)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (60 * person, 20, 99)).save(
            folder / str(person % 2) / f"{person}.png"
        )
    spec, out = place / "spec.toml", place / "out"
    escaped = str(folder).replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
    spec.write_text(SPEC.replace("FOLDER", escaped), encoding="utf-8")
    done = CliRunner().invoke(app, ["audit", str(spec), "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    return out


def require_printable(text):
    assert not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize("form", ["markdown", "pivot", "latex", "junit"])
def test_no_document_holds_what_a_reader_would_obey(audit, form, tmp_path):
    out = tmp_path / "document"
    command = ["report", str(audit), "--format", form, "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    require_printable(out.read_text(encoding="utf-8"))


def test_no_page_holds_it_either_nor_do_the_rows_for_its_script(audit):
    assert CliRunner().invoke(app, ["dashboard", str(audit)]).exit_code == 0
    for name in ("report.html", "dashboard.html"):
        text = (audit / name).read_text(encoding="utf-8")
        assert "an audit ?[2J?" in text
        require_printable(text)
    report = (audit / "report.html").read_text(encoding="utf-8")
    rows = json.loads(re.search(r'id="data">(.*?)</script>', report)[1])
    assert any("pictures?[2J?" in word for word in rows["words"])
    require_printable("".join(rows["words"]))


def test_no_caption_of_a_figure_holds_it():
    drawn = Figure(HOSTILE, Axis(0.0, 1.0), ((0.0, HOSTILE),), ())
    require_printable(drawn.svg())


def test_what_is_put_into_a_page_is_text():
    hostile = f'"><script>alert(1)</script>{HOSTILE}'
    for drawn in (
        table(hostile, hostile, [(hostile, hostile)], [[hostile]], kind=hostile, name=hostile),
        filter_link(hostile, words=hostile),
        strip_chart([Strip(hostile, hostile, 1, hostile, [])], Axis(0, 1), str, label=hostile),
        hostile,
    ):
        page = document(hostile, first=drawn, sections=[Section(hostile, hostile, hostile, drawn)])
        require_printable(page)
        assert "<script>alert" not in page
