"""`seepage report`, run as a user runs it, on real audits."""

import csv
import io
import json
import os
import shutil

import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.cli import app
from seepage.core.errors import InvalidValue, SeepageError, install_hint

SPEC = """
title = "Tiny"
metrics = ["psnr", "ssim", "exact"]
[[scenario]]
data = { name = "photos", people = 2, start = 0, pixels = 8 }
models = [{ name = "mlp", hidden = [8] }]
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
defenses = [[], [{ name = "Prune", ratio = RATIO }]]
"""


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Two real audits: the second prunes nearly everything."""
    folder = tmp_path_factory.mktemp("audits")
    for name, ratio in (("weak", 0.5), ("strong", 0.9999)):
        spec = folder / f"{name}.toml"
        spec.write_text(SPEC.replace("RATIO", str(ratio)))
        done = CliRunner().invoke(app, ["audit", str(spec), "--out", str(folder / name)])
        assert done.exit_code == 0, done.output
        assert f"report: {folder / name / 'report.html'}" in done.output.replace("\n", "")
    return folder


@pytest.fixture
def audits(audited, tmp_path):
    shutil.copytree(audited, tmp_path, dirs_exist_ok=True)
    return tmp_path


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_an_audit_leaves_its_page(audits):
    text = (audits / "weak" / "report.html").read_text(encoding="utf-8").replace("\xa0", " ")
    assert "2 of 2 people were identified without a defense: 2 images reconstructed." in text
    assert text.count("data:image/png") == 2 + 2 * 3


def test_a_report_is_rebuilt_at_any_time(audits):
    page = audits / "weak" / "report.html"
    first = page.read_text(encoding="utf-8")
    page.unlink()
    done = report(audits / "weak")
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8") == first
    assert "2 of 2 people were identified without a defense: 2 images reconstructed." in done.output
    assert not list((audits / "weak").glob(".*.partial"))


def test_the_other_formats_hold_the_same_numbers(audits):
    for form, name in {"csv": "report.csv", "json": "report.json", "markdown": "report.md"}.items():
        assert report(audits / "weak", "--format", form).exit_code == 0
        assert (audits / "weak" / name).exists()
    table = (audits / "weak" / "report.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(table)))
    plain = json.loads((audits / "weak" / "report.json").read_text())
    assert len(rows) == len(plain["records"]) == 4
    for row, record in zip(rows, plain["records"], strict=True):
        assert float(row["psnr"]) == pytest.approx(float(record["scores"]["psnr"][0]))
        assert row["defense"] == record["labels"]["defense"]
        assert row["batch_size"] == str(record["batch_size"])
    assert (
        plain["verdict"][0]
        == "2 of 2 people were identified without a defense: 2 images reconstructed."
    )
    assert plain["missing"] is None
    words = (audits / "weak" / "report.md").read_text()
    assert words.startswith("# Tiny\n\n**2 of 2 people were identified")


def test_parquet_is_written_where_its_library_is_and_named_where_it_is_not(audits):
    done = report(audits / "weak", "--format", "parquet", "--out", audits / "rows.parquet")
    try:
        from pyarrow import parquet
    except ImportError:
        assert isinstance(done.exception, sp.SeepageError)
        assert install_hint("parquet") in str(done.exception)
        assert not (audits / "rows.parquet").exists()
    else:
        assert parquet.read_table(audits / "rows.parquet").num_rows == 4


def test_two_audits_are_compared(audits):
    (audits / "weak.toml").write_text(
        SPEC.replace("RATIO", "0.5").replace("people = 2", "people = 1")
    )
    done = CliRunner().invoke(
        app, ["audit", str(audits / "weak.toml"), "--out", str(audits / "fewer")]
    )
    assert done.exit_code == 0
    same = report(audits / "weak", audits / "fewer")
    assert same.exit_code == 0, same.output
    assert "Nothing changed." in same.output
    text = (audits / "fewer" / "comparison.html").read_text(encoding="utf-8")
    assert "By setup" in text
    assert "only in the first" in text
    other = report(audits / "weak", audits / "strong", "--format", "csv")
    assert other.exit_code == 0
    rows = list(csv.DictReader(io.StringIO((audits / "strong" / "comparison.csv").read_text())))
    directions = {(row["defense_before"], row["defense"]): row["direction"] for row in rows}
    assert directions == {
        ("no defense", "no defense"): "same",
        ("Prune 0.5", "Prune 0.9999"): "better",
    }
    assert "Less leaks than before: with Prune 0.5, now Prune 0.9999" in other.output


def test_audits_with_nothing_in_common_are_one_error_and_no_file(audits):
    spec = SPEC.replace("RATIO", "0.5").replace("hidden = [8]", "hidden = [9]")
    (audits / "other.toml").write_text(spec)
    again = ["audit", str(audits / "other.toml"), "--out", str(audits / "other")]
    assert CliRunner().invoke(app, again).exit_code == 0
    done = report(audits / "weak", audits / "other")
    assert "the two audits have nothing in common" in str(done.exception)
    assert not (audits / "other" / "comparison.html").exists()
    gated = [*again, "--resume", "--fail-if-worse", str(audits / "weak")]
    assert "nothing in common" in str(CliRunner().invoke(app, gated).exception)


def test_the_gate_against_an_earlier_audit_goes_by_the_verdict_of_the_comparison(audits):
    def gate(name, baseline):
        out = str(audits / name)
        words = ["audit", str(audits / f"{name}.toml"), "--out", out, "--resume"]
        return CliRunner().invoke(app, [*words, "--fail-if-worse", str(audits / baseline)])

    worse = gate("weak", "strong")
    assert worse.exit_code == 3
    assert "More leaks than before: with Prune 0.9999, now Prune 0.5, 0 of 2" in worse.output
    assert gate("strong", "weak").exit_code == 0
    assert gate("weak", "weak").exit_code == 0


def test_the_comparison_in_every_format(audits):
    for form in ("json", "markdown"):
        assert report(audits / "weak", audits / "strong", "--format", form).exit_code == 0
    plain = json.loads((audits / "strong" / "comparison.json").read_text())
    assert len(plain["changes"]) == 4
    assert "weak against strong" in (audits / "strong" / "comparison.md").read_text()


def test_a_report_of_an_audit_that_was_broken_off_says_so(audits):
    last = load_audit(audits / "weak").records[-1]
    (audits / "weak" / "cases" / f"{last.case}.safetensors").unlink()
    done = report(audits / "weak")
    assert done.exit_code == 0, done.output
    assert "Not complete: 1 case of 10 not run yet." in done.output
    assert "Not complete: 1 case of 10" in (audits / "weak" / "report.html").read_text()
    # A table that is cited without the page says so too.
    for form, name in (("pivot", "report.pivot.md"), ("latex", "report.tex")):
        assert report(audits / "weak", "--format", form).exit_code == 0
        assert "Not complete: 1 case of 10" in (audits / "weak" / name).read_text()


def test_what_cannot_be_reported_is_one_sentence(audits):
    nothing = report(audits / "nowhere")
    assert isinstance(nothing.exception, sp.SeepageError)
    many = report(audits / "weak", audits / "weak", audits / "weak")
    assert "expected one audit, or two to compare, got 3" in str(many.exception)
    unwritable = report(audits / "weak", "--out", audits / "weak" / "spec.toml" / "r.html")
    assert isinstance(unwritable.exception, sp.SeepageError)
    assert "cannot write the report" in str(unwritable.exception)


def test_the_help_is_true():
    done = CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "200"})
    for word in ("html", "markdown", "csv", "json", "parquet", "--out", "two to compare"):
        assert word in done.output


def test_what_a_defense_costs_is_drawn_beside_what_it_lets_out(audited, tmp_path):
    worth = tmp_path / "worth.json"
    worth.write_text('{"no defense": 0.93, "Prune 0.5": 0.91}')
    page = tmp_path / "page.html"
    options = ["--utility", str(worth), "--out", str(page)]
    done = CliRunner().invoke(app, ["report", str(audited / "weak"), *options])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "What protection costs" in text
    assert "leaked at utility 0.93" in text
    assert "leaked at utility 0.91" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"Prune 0.6": 0.9}', "unknown defense 'Prune 0.6' in worth.json"),
        ('["none"]', "expected worth.json to map defenses to numbers"),
        ('{"none": "good"}', "expected worth.json to map defenses to numbers"),
        ("{", "cannot read utilities from"),
    ],
)
def test_utilities_that_fit_nothing_are_one_sentence(audited, tmp_path, content, said):
    worth = tmp_path / "worth.json"
    worth.write_text(content)
    options = ["--utility", str(worth), "--out", str(tmp_path / "page.html")]
    with pytest.raises(SeepageError) as caught:
        app(["report", str(audited / "weak"), *options], standalone_mode=False)
    assert said in str(caught.value)
    assert not (tmp_path / "page.html").exists()


def test_utility_belongs_to_the_page_of_one_audit(audited, tmp_path):
    worth = tmp_path / "worth.json"
    worth.write_text("{}")
    for others in ([str(audited / "strong")], ["--format", "csv"]):
        with pytest.raises(SeepageError, match="belongs to the page of one audit"):
            app(
                ["report", str(audited / "weak"), *others, "--utility", str(worth)],
                standalone_mode=False,
            )


@pytest.mark.parametrize("name", ["plan.json", "spec.toml", "audit.lock", "cases/new.html"])
def test_a_report_takes_the_place_of_no_file_that_the_audit_needs(audits, name):
    target = audits / "weak" / name
    before = target.read_bytes() if target.exists() else None
    refused = report(audits / "weak", "--out", target)
    assert isinstance(refused.exception, InvalidValue)
    assert "belongs to an audit" in str(refused.exception)
    assert (target.read_bytes() if target.exists() else None) == before


def test_a_report_takes_the_place_of_no_folder_pipe_or_device(audits, monkeypatch):
    monkeypatch.chdir(audits)
    refused = report("weak", "--out", ".")
    assert isinstance(refused.exception, InvalidValue)
    assert "expected --out to name a file, but '.' is a folder" in str(refused.exception)
    os.mkfifo("pipe")
    (audits / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        refused = report("weak", "--out", name)
        assert isinstance(refused.exception, InvalidValue)
        assert "got a pipe or device" in str(refused.exception)
    assert (audits / "pipe").is_fifo()
    assert (audits / "link").is_symlink()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "1" + "0" * 400, "true"])
def test_a_utility_is_a_finite_number(audited, tmp_path, number):
    (tmp_path / "utility.json").write_text(f'{{"no defense": {number}}}')
    refused = report(audited / "weak", "--utility", tmp_path / "utility.json")
    assert "to map defenses to numbers" in str(refused.exception)


def test_the_audit_to_compare_with_may_be_the_one_that_is_replaced(audits):
    spec, out = str(audits / "weak.toml"), str(audits / "strong")
    arguments = ["audit", spec, "--out", out, "--overwrite", "--fail-if-worse", out, "--plain"]
    assert CliRunner().invoke(app, arguments).exit_code == 3
