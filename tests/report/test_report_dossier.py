"""The dossier: every test with its result or "not run", never more than was shown."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import save_evidence
from seepage.cli import app
from seepage.core.errors import InvalidValue, UnreadableFile
from seepage.inference import AttributeComparison, EpsilonAudit
from seepage.inference._detection import Detection
from seepage.inference._membership import Membership
from seepage.numerics._significance import Rate
from seepage.report._dossier import (
    LIMITS,
    TESTS,
    DossierFinding,
    Source,
    Status,
    _check_dossier,
    _find_digest,
    make_dossier,
    read_dossier,
)
from seepage.report._dossier_sources import read_source
from seepage.report.page._dossier_page import dossier_page

SPEC = """
title = "Clinic"
seeds = [3]
[[scenario]]
data = [{ name = "digits", people = 2, start = 0 }]
models = [{ name = "mlp", hidden = [16] }]
threats = [{ knows_labels = false }]
attacks = [{ name = "analytic_fc" }]
defenses = [[], [{ name = "AddGaussian", std = 10.0 }]]
"""
ALL = Rate(48, 48)
HOSTILE = "</script><script>window.hacked = 1</script>"
ABOUT = {"system": "an MLP", "data": "patients", "adversary": "the update"}


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A real audit, with controls."""
    folder = tmp_path_factory.mktemp("clinic")
    (folder / "spec.toml").write_text(SPEC, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["audit", str(folder / "spec.toml"), "--out", str(folder / "audit"), "--plain"]
    )
    assert done.exit_code == 0, done.output
    return folder / "audit"


def make(*sources, **changed):
    about = {"title": "Clinic", "version": "0.2", "written": "2026-01-01"} | changed
    return make_dossier(sources, **about)


def source(*findings, name="one", **changed):
    return Source(name, "One", {}, {}, {}, findings=findings, **changed)


def finding(status=Status.leak, *, test="membership", subject="an MLP", result="4 of 4"):
    return DossierFinding(test, subject, status, result, "", "", "", "the update")


def keep(found, path, **changed):
    save_evidence(found, path, **{**ABOUT, **changed})
    return read_source(path).findings[0]


def named(dossier, test):
    return next(one for one in dossier["tests"] if one["test"] == test)


def test_the_result_of_an_audit_is_told_by_setting_with_its_control_and_effort(clinic):
    made = make(read_source(clinic))
    bare, noisy = named(made, "reconstruction")["findings"]
    assert bare["subject"] == "digits: mlp, no defense"
    assert bare["status"] == Status.leak
    assert bare["result"].startswith("2 of 2 people were identified: 2 images reconstructed")
    # With both of two found, 0.05^(1/2) is the exact lower end.
    assert bare["interval"] == "95 % interval from 2 updates: 22.4 to 100.0 % of people"
    assert "analytic_fc: 2 cases" in bare["effort"]
    assert "canaries found without the defense: " in bare["control"]
    assert "but not the labels" in bare["adversary"]
    assert noisy["status"] != Status.leak
    labels = named(made, "attributes")["findings"]
    assert [one["subject"] for one in labels] == [
        "label, digits: mlp, no defense",
        "label, digits: mlp, Gaussian noise \N{GREEK SMALL LETTER SIGMA}=10",
    ]
    assert any("drawn at random (taken in order)" in limit for limit in made["limits"])


def test_digests_are_those_of_the_files(clinic):
    files = make(read_source(clinic))["sources"][0]["files"]
    assert set(files) == {"plan.json", "cases", "spec.toml", "environment.json"}
    cases = [f"cases/{path.name}" for path in sorted((clinic / "cases").iterdir())]
    printed = [
        f"{hashlib.sha256((clinic / one).read_bytes()).hexdigest()}  {one}\n" for one in cases
    ]
    assert files.pop("cases") == hashlib.sha256("".join(printed).encode()).hexdigest()
    for name, digest in files.items():
        assert hashlib.sha256((clinic / name).read_bytes()).hexdigest() == digest


def test_every_required_test_is_there_and_those_without_evidence_were_not_run():
    made = make(source(finding()))
    assert [test["test"] for test in made["tests"]] == list(TESTS)
    assert [t["test"] for t in made["tests"] if t["status"] != Status.absent] == ["membership"]
    assert made["headline"] == f"Of {len(TESTS)} tests, 1 found a leak and 8 were not run"
    page = dossier_page(made)
    assert page.count(">not run<") == 8
    assert all(test.name in page for test in TESTS.values())


def test_nothing_promises_more_than_resistance_at_this_effort():
    said = dossier_page(make(source(finding(Status.resisted)))).lower()
    said += " ".join(LIMITS).lower()
    body = re.sub(r"<(style|script)>.*?</\1>", "", said, flags=re.DOTALL)
    for promise in (
        "is safe",
        "secure",
        "compliant",
        "anonymous",
        "no risk",
        "guarantee",
        "proves",
    ):
        assert promise not in body, promise
    assert "resisted at this effort" in body


def test_the_digest_is_of_a_form_that_anybody_can_compute():
    made = make(source(finding()))
    content = {k: v for k, v in json.loads(json.dumps(made)).items() if k != "digest"}
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(plain.encode()).hexdigest() == made["digest"]
    assert _check_dossier(made, "it") is made
    altered = json.loads(json.dumps(made).replace("4 of 4", "0 of 4"))
    with pytest.raises(UnreadableFile, match="was altered"):
        _check_dossier(altered, "it")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "got another file"),
        ({"kind": "dossier", "format": 99}, "format 1"),
        ({"kind": "dossier", "format": 1, "tests": 3, "digest": None}, "lacks parts"),
        ({"kind": "dossier", "format": 1, "title": "", "written": "", "tests": [{"name": "a"}]},
         "lacks parts"),
    ],
)  # fmt: skip
def test_what_is_no_dossier_is_refused(wrong, words):
    if isinstance(wrong, dict) and "tests" in wrong:
        wrong = {**wrong, "digest": _find_digest(wrong)}
    with pytest.raises(UnreadableFile, match=words):
        _check_dossier(wrong, "it")


@pytest.mark.parametrize(
    ("key", "value"),
    [("power", {"found": 1, "of": 2, "interval": []}), ("members", {"found": 10**7, "of": 10**30})],
)
def test_impossible_counts_and_intervals_are_one_sentence(tmp_path, key, value):
    path = tmp_path / "it.json"
    keep(Detection.of(found_members([0.005] * 4 + [0.4]), torch.arange(5) < 4), path)
    plain = json.loads(path.read_text())
    place = plain if key == "power" else plain["detection"]
    place[key] = {**place[key], **value}
    path.write_text(json.dumps(plain))
    with pytest.raises(UnreadableFile, match="lacks something that evidence on membership has"):
        read_source(path)


def test_half_of_a_character_is_one_sentence(clinic, tmp_path):
    out = tmp_path / "dossier"
    assert ask(clinic, "--out", out).exit_code == 0
    path, half = out / "dossier.json", "\\ud83d"
    path.write_text(path.read_text("utf-8").replace('"author": ""', f'"author": "{half}"'))
    with pytest.raises(UnreadableFile, match="half of a character"):
        read_dossier(path)
    evidence = tmp_path / "evidence.json"
    evidence.write_text(f'{{"kind": "membership", "format": 1, "system": "{half}"}}')
    with pytest.raises(UnreadableFile, match="half of a character"):
        read_source(evidence)
    # Both halves are one character.
    evidence.write_text(f'{{"kind": "membership", "format": 1, "system": "{half}\\ude00"}}')
    with pytest.raises(UnreadableFile, match="lacks something"):
        read_source(evidence)
    with pytest.raises(InvalidValue, match="--author as text"):
        make_dossier([read_source(clinic)], title="", version="1", written="", author="\udcff")


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (finding(Status.resisted), finding(Status.leak), "worse"),
        (finding(Status.leak), finding(Status.unclear), "better"),
        (finding(Status.leak), finding(Status.leak, result="3 of 4"), "other numbers"),
        (finding(Status.leak), finding(Status.leak), "same"),
        (None, finding(), "new"),
        (finding(), None, "no longer run"),
    ],
)
def test_changes_against_the_last_dossier(before, now, words):
    other = finding(Status.unclear, test="epsilon")
    old = make(source(*filter(None, (before, other))))
    changes = make(source(*filter(None, (now, other))), against=old)["changes"]
    row = next(row for row in changes["rows"] if row["test"] == TESTS["membership"].name)
    assert row["change"] == words
    assert changes["against"]["digest"] == old["digest"]
    page = dossier_page(make(source(*filter(None, (now, other))), against=old))
    assert "Since the last dossier" in page


def found_members(p_values, *, strangers=199, power=ALL):
    p = torch.tensor(p_values, dtype=torch.float64)
    return Membership(p, 1 / p, -p, ("a test",), strangers=strangers, power=power)


def test_membership_is_judged_by_the_truth_if_it_is_known(tmp_path):
    found = found_members([0.005] * 4 + [0.4] * 6)
    told = Detection.of(found, torch.arange(10) < 4)
    seen = keep(told, tmp_path / "it.json")
    assert seen.status is Status.leak
    assert seen.result.startswith("4 of 4 members were found at p <= 0.01, and 0 of 6 strangers")
    assert "39.8 to 100.0 % of members" in seen.interval
    assert "rehearsed members found: 48 of 48" in seen.control


def test_a_file_whose_name_is_no_text_has_a_dossier(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.json")
    try:
        save_evidence(found_members([0.005] * 4), path, **ABOUT)
    except OSError:
        pytest.skip("this file system takes only names that are text")
    made = make(read_source(path))
    assert [one["name"] for one in made["sources"]] == ["caf\N{REPLACEMENT CHARACTER}.json"]
    assert _check_dossier(made, "made") == made


def test_members_who_are_not_found_resist_only_a_test_that_is_able(tmp_path):
    told = [
        Detection.of(found_members([0.3] * 4 + [0.4] * 6, power=power), torch.arange(10) < 4)
        for power in (Rate(48, 48), Rate(3, 48), None)
    ]
    found = [keep(one, tmp_path / f"{n}.json").status for n, one in enumerate(told)]
    assert found == [Status.resisted, Status.unclear, Status.resisted]


def test_membership_without_the_truth_never_says_resisted(tmp_path):
    hit = keep(found_members([0.005] * 3 + [0.4] * 7), tmp_path / "hit.json")
    missed = keep(found_members([0.4] * 10), tmp_path / "missed.json")
    assert (hit.status, missed.status) == (Status.leak, Status.unclear)
    assert "3 of 10 candidates have p <= 0.01, where luck gives 0.1" in hit.result


def test_few_strangers_raise_the_level_at_which_members_count(tmp_path):
    found = keep(found_members([0.024] * 4 + [0.4], strangers=40), tmp_path / "it.json")
    assert "4 of 5 candidates have p <= 0.024" in found.result


def test_attributes_are_a_leak_only_if_the_update_adds_something(tmp_path):
    yes, no = torch.ones(8, dtype=torch.bool), torch.zeros(8, dtype=torch.bool)
    gain = keep(AttributeComparison("party", yes, no, no), tmp_path / "gain.json")
    none = keep(AttributeComparison("party", yes, yes, no), tmp_path / "none.json")
    assert (gain.status, none.status) == (Status.leak, Status.unclear)
    assert "8 of 8 people's party guessed right with the update, 0 of 8 without" in gain.result


@pytest.mark.parametrize(
    ("claimed", "proven", "status"),
    [(2.0, 3.0, Status.leak), (2.0, 0.5, Status.resisted), (50.0, 0.5, Status.unclear),
     (float("inf"), 0.5, Status.unclear)],
)  # fmt: skip
def test_a_promise_resists_only_canaries_that_could_refute_it(tmp_path, claimed, proven, status):
    audit = EpsilonAudit(claimed, 1e-5, 0.95, proven, 0.0, (0.0, 0.0), trials=200, canaries=1000)
    assert keep(audit, tmp_path / "it.json").status is status


def test_scores_of_the_wrong_sign_are_no_evidence_that_a_promise_holds(tmp_path):
    found = EpsilonAudit(2.0, 1e-5, 0.95, 0.0, 0.0, (0.0, 0.0), 200, 1000, other_sign=1.5)
    judged = keep(found, tmp_path / "it.json")
    assert judged.status is Status.unclear
    assert "with the other sign of the scores it would be 1.50" in judged.result


def test_hostile_words_stay_text():
    words = {HOSTILE: HOSTILE}
    said = finding(subject=HOSTILE, result=HOSTILE)
    hostile = Source(HOSTILE, HOSTILE, words, words, words, (), (said,), (HOSTILE,), (HOSTILE,))
    made = make(hostile, title=HOSTILE, author=HOSTILE)
    for page in (dossier_page(made), dossier_page(make(source(finding()), against=made))):
        assert "<script>window" not in page
        assert "&lt;script&gt;window" in page


def test_sources_of_one_name_and_none_at_all_are_refused():
    with pytest.raises(InvalidValue, match="twice"):
        make(source(), source())
    with pytest.raises(InvalidValue, match="at least one"):
        make()


def ask(*arguments):
    return CliRunner().invoke(app, ["dossier", *map(str, arguments)])


def test_the_command_writes_both_files_and_compares_with_the_last(clinic, tmp_path):
    out = tmp_path / "made"
    done = ask(clinic, "--out", out, "--title", "Our clinic", "--author", "A. Officer")
    assert done.exit_code == 0, done.output
    made = json.loads((out / "dossier.json").read_text(encoding="utf-8"))
    assert (made["title"], made["author"]) == ("Our clinic", "A. Officer")
    assert made["digest"] in (out / "dossier.html").read_text(encoding="utf-8")
    again = ask(clinic, "--out", tmp_path / "again", "--against", out / "dossier.json")
    assert "Against the last dossier" in again.output
    checked = CliRunner().invoke(app, ["verify", str(out / "dossier.json")])
    assert (checked.exit_code, made["digest"] in checked.output) == (0, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"\xff\xfe", "expected the folder of an audit"),
        (b"[1]", "expected the folder of an audit"),
        (b"{", "not plain JSON"),
        (b'{"kind": "membership", "format": 7}', "evidence in format 1"),
        (b'{"kind": "membership", "format": 1}', "lacks something"),
        (b'{"kind": "epsilon", "format": 1, "proven": "x"}', "lacks something"),
    ],
)
def test_what_is_no_evidence_gets_one_sentence(tmp_path, content, words):
    path = Path(tmp_path, "it.json")
    if content is not None:
        path.write_bytes(content)
    done = ask(path, "--out", tmp_path / "out")
    assert done.exit_code != 0
    assert isinstance(done.exception, sp.SeepageError)
    assert words in str(done.exception)
    assert not (tmp_path / "out").exists()
