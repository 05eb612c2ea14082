"""Audits of tables and texts, from the spec to the page."""

import io
import re
import tomllib
from datetime import datetime

import pytest
from rich.console import Console
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import QUICKSTART, load_audit
from seepage.audit.results._amount import Amount
from seepage.cli import app
from seepage.cli._run_audit import _AuditProgress
from seepage.report import audit_markdown, leak_table, most, summarise
from seepage.report._verdict import audit_verdict
from seepage.report.page._picture import picture
from seepage.report.page._several_audits import DashboardAudit, dashboard_page

SPEC = """
title = "read, not looked at"

[[scenario]]
data = { name = "voters", people = 1, start = 0 }
models = { name = "mlp", hidden = [64] }
threats = { knows_labels = true }
attacks = { name = "tableak", steps = 150, members = 3 }

[[scenario]]
data = { name = "hamlet", people = 2, batch_size = 2, start = 0 }
models = { name = "gpt", width = 48 }
threats = {}
attacks = { name = "dager" }
defenses = [[], [{ name = "AddGaussian", std = 0.01 }]]
"""


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readable")
    (folder / "spec.toml").write_text(SPEC, encoding="utf-8")
    out = folder / "out"
    done = CliRunner().invoke(app, ["audit", str(folder / "spec.toml"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return load_audit(out)


def test_the_records_hold_scores_and_baselines_of_both_kinds(audit):
    table, text, noisy = audit.records
    assert table.scores["feature_accuracy"][0] >= 0.8
    assert table.baselines["mean"]["feature_accuracy"][0] < 0.6
    assert text.scores["token_accuracy"] == (1.0, 1.0)
    assert text.scores["exact"] == (1.0, 1.0)
    assert text.certificate["unique"]
    assert max(noisy.scores["token_accuracy"]) < 0.5
    assert "ssim" not in text.scores


def test_truth_and_guess_are_kept_in_words(audit):
    table, text, noisy = audit.records
    line = "tis now struck twelve ; get thee to bed , francisco ."
    assert " ".join(audit.truth_said(text)[1]) == line
    assert audit.guess_said(text) == audit.truth_said(text)
    assert audit.guess_said(noisy) != audit.truth_said(noisy)
    assert audit.truth_said(table)[0][4] == "party: weak Republican"
    said = [outcome.said for outcome in audit.outcomes()]
    assert said == [audit.guess_said(record) for record in audit.records]


def test_the_page_shows_words_and_marks_those_that_are_wrong(audit):
    page = (audit.path / "report.html").read_text(encoding="utf-8")
    assert "<span>francisco</span>" in page
    assert "right in every token" in page
    assert '<th scope="row">party</th><td class="faint">weak Republican</td>' in page
    assert "<mark>" in page
    assert "<polyline" not in page.partition('id="people"')[2].partition("<section")[0]
    assert "3 of 3 people" in page


def test_strips_and_medians_are_in_per_cent_and_not_in_decibels(audit):
    page = (audit.path / "report.html").read_text(encoding="utf-8")
    section = page[page.index('id="defenses"') : page.index('id="records"')]
    assert "in per cent of the columns or words" in section
    assert "The tint begins at 80 % of the columns or words" in section
    assert "dB" not in section
    columns = page[page.index('id="results"') :]
    assert columns.index("feature_accuracy") < columns.index("psnr")
    assert dashboard_of(audit).count("2 of 2, 100 %") == 1


def dashboard_of(audit):
    return dashboard_page([DashboardAudit("read", datetime(2026, 1, 1), audit)], unread={})


def test_tables_show_the_share_that_is_right_of_what_people_read(audit):
    text = io.StringIO()
    Console(file=text, width=140).print(leak_table(summarise(audit.records), width=140))
    share = f"{100 * audit.records[0].scores['feature_accuracy'][0]:.0f} % #0"
    lines = text.getvalue().splitlines()
    shown = {
        name: [line for line in lines if line.strip().startswith(name)] for name in ("vot", "ham")
    }
    assert [share in line for line in shown["vot"]] == [True]
    assert ["100 % #" in line for line in shown["ham"]] == [True, False]
    assert "PSNR" not in text.getvalue()
    assert "share of columns that are right, for texts, the share of words" in " ".join(
        text.getvalue().split()
    )
    written = audit_markdown(audit)
    assert "100 % of the words #" in written
    assert " dB" not in written


def test_the_log_says_it_in_the_same_measure(audit):
    text = io.StringIO()
    shown = _AuditProgress(Console(file=text, width=200))
    with shown.begin(total=3, done=(), mended=()):
        for record in audit.records:
            shown.finished(record)
    assert [line.partition(" % of the ")[2] for line in text.getvalue().splitlines()] == [
        "columns",
        "words",
        "words",
    ]


def test_measures_of_several_kinds_are_ordered_by_what_counts_as_recognisable():
    assert most([Amount("psnr", 19.0), Amount("feature_accuracy", 0.8)]).metric != "psnr"
    assert most([Amount("psnr", 60.0), Amount("token_accuracy", 1.0)]).metric == "psnr"
    assert most([]).words() == Amount("token_accuracy", None).words() == "-"


def test_a_space_stands_before_every_percent_sign_of_the_quickstart(tmp_path):
    spec = tomllib.loads(QUICKSTART.read_text(encoding="utf-8"))
    # What is computed is enough; noise that hides everybody adds shares to the verdict.
    [computed, _] = spec["scenario"]
    computed["attacks"] = [{"name": "analytic_fc"}]
    computed["defenses"] = computed["defenses"][::3]
    computed["defenses"][-1][-1]["std"] = 100.0
    audit = sp.audit.run({**spec, "scenario": [computed]}, out=tmp_path / "quick")
    terminal = CliRunner().invoke(app, ["report", str(tmp_path / "quick")]).output
    page = (tmp_path / "quick" / "report.html").read_text(encoding="utf-8")
    words = re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    judged = audit_verdict(audit)
    verdict = " ".join([judged.headline, *judged.details])
    for text in (verdict, terminal, words, audit_markdown(audit)):
        assert " % " in text
        assert not re.findall(r"\S*\d%", text)


def test_words_are_escaped():
    drawn = picture(("<b>", "a"), alt="", over=("<b>", "b"))
    assert "<b>" not in drawn
    assert "<mark>a</mark>" in drawn
