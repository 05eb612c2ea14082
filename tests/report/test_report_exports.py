"""Pivot tables, LaTeX, figures, JUnit and SARIF: what other programs read."""

import json
import re
import sys
from dataclasses import replace
from itertools import product
from xml.etree import ElementTree

import pytest
from tests.report.records import make_record
from typer.testing import CliRunner

from seepage.audit.results import Results
from seepage.cli import app
from seepage.core._construct import Component
from seepage.core.errors import InvalidValue, MissingExtra
from seepage.report import summarise
from seepage.report._exports import _list_checks, as_junit, as_sarif
from seepage.report._figure import COLUMN, PAGE, leak_figure
from seepage.report._summary import name_attacks
from seepage.report._written_tables import _escape_latex, make_pivot, pivot_latex, pivot_markdown
from seepage.scoring._identification import Identification

PRUNE = (Component("Prune", {"ratio": 0.9}),)
FIRST = Identification(1, 99, "any label", 9.0, 1.0, True, 100.0, 50.0, 200.0)
FAR = Identification(40, 99, "any label", 1.0, 2.0, False, 1.0, 1.0, 2.0)


def record(psnr, place=FAR, *, size=1, **changed):
    plain = {
        "data": "digits",
        "people": tuple(range(size)),
        "model": "lenet(classes=10)",
        "attack": Component("dlg", {"steps": 10}),
        "scores": {"psnr": (psnr,) * size},
        "effort": {"seconds": 1.5},
        "identification": (place,) * size,
    }
    return make_record(**plain | changed)


GRID = [
    record(10.0 * size + number, size=size, defense=defense, attack=Component(attack))
    for (number, attack), defense, size in product(
        enumerate(("dlg", "rgap")), ((), PRUNE), (1, 8, 16)
    )
]
UNFIT = replace(record(0.0), scores={}, identification=(), error="two inputs", applicable=False)
BROKEN = replace(UNFIT, error="<it broke>", applicable=True, attack=Component("rgap"))


def test_a_pivot_has_attacks_and_batch_sizes_down_and_defenses_across():
    pivot = make_pivot(summarise(GRID))
    assert pivot.titles == ("attack", "batch")
    assert pivot.defenses == ("no defense", "Prune 0.9")
    assert [names for names, _ in pivot.rows] == [
        (attack, batch) for attack in ("dlg", "rgap") for batch in ("1", "8", "16")
    ]
    assert [cell.text for cell in pivot.rows[-1][1]] == ["161.0", "161.0"]


def test_a_pivot_leaves_open_what_was_not_planned_and_marks_what_does_not_apply():
    rows = [record(20.0), record(15.0, defense=PRUNE, size=2), UNFIT]
    text = pivot_markdown(make_pivot(summarise([rows[0], rows[1]])))
    assert "| dlg | 1 | 20.0 (0/1) | - |" in text
    assert "n/a" in pivot_markdown(make_pivot(summarise([UNFIT])))


def test_attacks_of_one_name_are_told_apart_by_what_differs():
    weak, strong = (Component("dlg", {"tv": tv, "restarts": 1}) for tv in (0.1, 0.2))
    assert list(name_attacks([weak, strong]).values()) == ["dlg tv=0.1", "dlg tv=0.2"]
    assert len(make_pivot(summarise([record(1.0, attack=a) for a in (weak, strong)])).rows) == 2


def test_latex_is_escaped_and_has_as_many_cells_as_columns():
    text = pivot_latex(make_pivot(summarise(GRID)), title="100% of $x_1$ \\input{file}")
    assert r"100\% of \$x\_1\$ \textbackslash{}input\{file\}" in text
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    assert {line.count(" & ") for line in body.strip().splitlines()} == {3}
    assert _escape_latex("a\n\nb") == "a b"


def test_latex_is_bold_where_somebody_is_identified():
    text = pivot_latex(make_pivot(summarise([record(40.0, FIRST)])), title="t")
    assert r"\textbf{40.0 (1/1)}" in text


def test_junit_fails_where_somebody_is_identified_and_skips_what_tells_nothing():
    found = [record(40.0, FIRST), record(12.0, defense=PRUNE), UNFIT, BROKEN]
    found[2] = replace(UNFIT, attack=Component("analytic_fc"))
    [suite] = ElementTree.fromstring(as_junit("a < b \x00", found))
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "2",
    }
    [failure] = suite.iter("failure")
    assert failure.get("message") == "1 of 1 person identified; digits #0 is recognisable (40.0 dB)"
    assert [one.get("message").partition(":")[0] for one in suite.iter("skipped")] == [
        "inconclusive",
        "not applicable",
    ]
    assert next(suite.iter("error")).get("message") == "<it broke>"


def test_every_setup_is_a_check_of_its_own():
    assert len({check.name for check in _list_checks(GRID)}) == len(GRID)


def test_sarif_lists_what_leaks_and_points_at_the_spec():
    records = [record(40.0, FIRST), record(12.0, defense=PRUNE), UNFIT]
    found = json.loads(as_sarif("t", records, version="0.2.0"))
    [run] = found["runs"]
    assert found["version"] == "2.1.0"
    assert [result["level"] for result in run["results"]] == ["error", "warning"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} <= rules
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "spec.toml"


# What the schema of SARIF 2.1.0 requires of each object that is written, and what else it allows
# there of what is written; other properties it refuses.
SARIF = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"results", "automationDetails"}),
    "driver": ({"name"}, {"version", "rules"}),
    "rule": ({"id"}, {"shortDescription", "defaultConfiguration"}),
    "result": ({"message"}, {"ruleId", "level", "locations", "partialFingerprints"}),
}


def test_sarif_keeps_to_the_schema():
    records = [record(40.0, FIRST), record(12.0, defense=PRUNE, data='a {0} "[b](c)"'), BROKEN]
    log = json.loads(as_sarif("Title / of a run", records, version="0.2.0"))
    [run] = log["runs"]
    driver, results = run["tool"]["driver"], run["results"]
    shown = {"log": [log], "run": [run], "driver": [driver], "rule": driver["rules"]}
    for name, found in {**shown, "result": results}.items():
        required, allowed = SARIF[name]
        for one in found:
            assert required <= set(one) <= required | allowed, name
    assert set(run["tool"]) == {"driver"}
    assert set(run["automationDetails"]) == {"id"}
    assert len(results) == 3
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for result in results:
        assert result["level"] in ("none", "note", "warning", "error")
        assert set(result["message"]) == {"text"}
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        [location] = result["locations"]
        place = location["physicalLocation"]
        assert set(place["artifactLocation"]) == {"uri"}
        assert re.fullmatch(r"[\w./%-]+", place["artifactLocation"]["uri"])
        assert place["region"] == {"startLine": 1}


def test_a_figure_has_a_dot_for_every_person_inside_its_frame():
    drawn = leak_figure(Results.of(GRID))
    root = ElementTree.fromstring(drawn.svg())
    dots = [part for part in root if part.tag.endswith("circle")]
    assert len(dots) == 2 * (1 + 8 + 16)
    assert all(0 < float(dot.get("cx")) < drawn.width for dot in dots)
    assert drawn.width == COLUMN or drawn.width == PAGE
    assert root.get("width") == f"{drawn.width:g}pt"


def test_a_pdf_is_one_page_of_the_size_of_the_figure():
    pytest.importorskip("matplotlib")
    drawn = leak_figure(Results.of([record(40.0, defense=PRUNE), record(20.0)]))
    written = drawn.pdf()
    assert written.startswith(b"%PDF-")
    assert written.rstrip().endswith(b"%%EOF")
    width, height = map(
        float, re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", written).groups()
    )
    assert width == pytest.approx(drawn.width, abs=0.5)
    assert height == pytest.approx(drawn.height, abs=0.5)


def test_a_label_longer_than_the_page_leaves_room_for_the_strips():
    """A spec, or a record from elsewhere, may name a defense as it likes."""
    pytest.importorskip("matplotlib")
    long = [(Component("Prune" * 60, {"ratio": ratio}),) for ratio in (0.1, 0.9)]
    drawn = leak_figure(Results.of([record(40.0, defense=one) for one in long]))
    root = ElementTree.fromstring(drawn.svg())
    dots = [float(part.get("cx")) for part in root if part.tag.endswith("circle")]
    assert all(PAGE / 2 < across < PAGE for across in dots)
    assert len({row.label for row in drawn.rows}) == 2
    assert drawn.pdf().startswith(b"%PDF-")


def test_a_pdf_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"\[figures\].*--format svg"):
        leak_figure(Results.of([record(40.0)])).pdf()


@pytest.mark.parametrize("form", ["pivot", "latex", "svg", "pdf", "junit", "sarif"])
def test_two_audits_cannot_be_compared_in_formats_of_one(form):
    words = ["report", "one", "two", "--format", form]
    with pytest.raises(InvalidValue, match=f"--format {form} is of one audit"):
        CliRunner().invoke(app, words, catch_exceptions=False)
