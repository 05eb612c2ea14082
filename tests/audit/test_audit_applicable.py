"""Cases that an attack cannot take are listed as such, and are no failures."""

import csv
import io
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from seepage.audit import Record, load_audit
from seepage.cli import app
from seepage.core._construct import Component
from seepage.core.errors import MissingKnowledge
from seepage.report import inapplicable

SPEC = """
controls = false
metrics = ["psnr"]
[[scenario]]
data = [{ name = "digits", people = 1, start = 0 }]
models = [MODELS]
attacks = [ATTACKS]
threats = [THREATS]
"""
CLOSED, SEARCH = '{ name = "analytic_fc" }', '{ name = "dlg", iterations = 1, restarts = 1 }'
MATCHING = '{ name = "inverting_gradients", steps = 2, restarts = 1 }'
ONE = '{ name = "digits", people = 1, start = 0 }'
FLAT, DEEP = '{ name = "mlp", hidden = [8] }', '{ name = "lenet" }'
BLIND, TOLD = "{ knows_labels = false }", "{ knows_labels = true }"


@pytest.fixture
def audit(tmp_path):
    """Run a spec of these parts, and return what the command printed and its exit code."""

    def audit(models, attacks, threats=BLIND, *options, data=ONE):
        text = SPEC.replace("MODELS", models).replace("ATTACKS", attacks).replace(ONE, data)
        spec = tmp_path / "spec.toml"
        spec.write_text(text.replace("THREATS", threats), encoding="utf-8")
        words = ["audit", str(spec), "--out", str(tmp_path / "out"), "--plain", *options]
        return CliRunner().invoke(app, words)

    return audit


def test_a_case_that_an_attack_cannot_take_is_listed_everywhere_and_is_no_failure(audit, tmp_path):
    done = audit(f"{FLAT}, {DEEP}", f"{CLOSED}, {SEARCH}")
    assert done.exit_code == 0, done.output
    assert "n/a" in done.output
    assert "not applicable: lenet" in done.output
    assert "Not applicable: analytic_fc, 1 case: lenet" in done.output
    assert "failed" not in done.output

    out = tmp_path / "out"
    unfit = [record for record in load_audit(out).records if not record.applicable]
    assert [record.attack.name for record in unfit] == ["analytic_fc"]
    assert "Not applicable: analytic_fc, 1 case" in (out / "report.html").read_text()
    for form in ("csv", "json", "markdown"):
        assert CliRunner().invoke(app, ["report", str(out), "--format", form]).exit_code == 0
    rows = list(csv.DictReader(io.StringIO((out / "report.csv").read_text())))
    assert sorted(row["status"] for row in rows) == ["not applicable", *["scored"] * 3]
    assert [row["model"] for row in rows if row["status"] == "not applicable"] == [unfit[0].model]
    stored = json.loads((out / "report.json").read_text())["records"]
    assert [record["applicable"] for record in stored].count(False) == 1
    assert "n/a" in (out / "report.md").read_text()


def test_an_audit_in_which_nothing_applies_has_measured_nothing(audit):
    done = audit(DEEP, CLOSED)
    assert done.exit_code == 1
    assert "Nothing was measured, since no attack applies: lenet" in done.output


def test_a_setup_that_no_attack_can_take_is_inconclusive(audit):
    two = '{ name = "digits", people = 2, batch_size = 2 }'
    done = audit(FLAT, '{ name = "rgap" }', BLIND, "--fail-if-inconclusive", data=f"{ONE}, {two}")
    assert "No result with no defense, batch size 2: no attack applies." in done.output
    assert done.exit_code == 4


def test_labels_that_every_threat_withholds_are_missed_before_anything_runs(audit, tmp_path):
    with pytest.raises(MissingKnowledge) as raised:
        raise audit(DEEP, MATCHING).exception
    assert str(raised.value).startswith("spec.toml, line 7: scenario 1: attacks: ")
    assert "add infer_labels = true to the attack, or knows_labels = true" in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_the_remedy_works(audit):
    inferred = MATCHING.replace(" }", ", infer_labels = true }")
    assert audit(DEEP, inferred).exit_code == 0


def test_a_threat_that_withholds_labels_beside_one_that_does_not_is_not_applicable(audit, tmp_path):
    done = audit(DEEP, MATCHING, f"{BLIND}, {TOLD}")
    assert done.exit_code == 0, done.output
    assert sorted(r.status for r in load_audit(tmp_path / "out").records) == [
        "not applicable",
        "scored",
    ]


def test_a_not_applicable_case_is_not_run_again(audit):
    assert audit(f"{FLAT}, {DEEP}", CLOSED).exit_code == 0
    again = audit(f"{FLAT}, {DEEP}", CLOSED, BLIND, "--resume", "--retry-failed")
    assert "2 cases are done, 0 to run" in again.output


RECORD = Record(
    data="digits",
    people=(0,),
    model="m",
    local=Component("Gradient"),
    defense=(),
    threat=Component("Threat"),
    attack=Component("rgap", {"damping": 0.1}),
    seed=0,
    error="two inputs",
    applicable=False,
)


def test_records_of_before_are_read_as_failures():
    plain = RECORD.plain()
    del plain["applicable"]
    read = Record.from_plain(plain)
    assert read.failed
    assert read.status == "failed"


def test_one_sentence_tells_of_all_cases_with_the_same_reason():
    other = replace(RECORD, people=(1,))
    scored = replace(RECORD, error=None, applicable=True)
    assert inapplicable([RECORD, other, scored]) == ["Not applicable: rgap, 2 cases: two inputs."]
