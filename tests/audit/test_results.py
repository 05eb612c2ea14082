"""The table of results: one row per case and person, grouped without judging anybody again."""

import sys
from types import SimpleNamespace

import pytest
from tests.report.records import make_record

from seepage import report
from seepage.audit import Results
from seepage.core._construct import Component
from seepage.core.errors import MissingExtra, UnknownName
from seepage.scoring._identification import Identification

PRUNE = (Component("Prune", {"ratio": 0.9}),)
FIRST = Identification(1, 99, "same label", 9.0, 3.0, True, 5e3, 1e3, 2e4)


def record(psnr, **changed):
    found = {"scores": {"psnr": (psnr,)}, "identification": (FIRST,)}
    return make_record(**found | changed)


BARE, AGAIN, PRUNED = record(20.0), record(25.0, seed=1), record(9.0, defense=PRUNE)
FAILED = make_record(model="cnn", error="it failed")
RESULTS = Results.of([PRUNED, BARE, AGAIN, FAILED])


def test_groups_have_their_rows_and_the_cases_without_a_row():
    groups = RESULTS.by("defense", "model")
    assert {key: [row.psnr for row in group] for key, group in groups.items()} == {
        (PRUNE, "mlp(hidden=(8,))"): [9.0],
        ((), "mlp(hidden=(8,))"): [20.0, 25.0],
        ((), "cnn"): [],
    }
    assert groups[(), "cnn"].records == (FAILED,)
    assert sum(map(len, groups.values())) == len(RESULTS)
    assert [len(group.records) for group in RESULTS.without("seed").values()] == [1, 2, 1]
    assert [row.psnr for row in RESULTS.where(defense=(), seed=1)] == [25.0]
    assert not RESULTS.where(model="resnet")
    with pytest.raises(UnknownName, match="did you mean 'defense'"):
        RESULTS.by("defence")


def test_setups_without_a_defense_come_first():
    assert [setup.defense for setup in RESULTS.setups] == [(), PRUNE]
    assert {row.record.defense for row in RESULTS.bare} == {()}
    assert Results.of([PRUNED]).bare[0].psnr == 9.0


def test_the_strongest_result_of_a_person_counts_and_is_judged_once():
    [best] = RESULTS.strongest()
    assert best.psnr == 25.0
    assert RESULTS.strongest().strongest() is RESULTS.strongest()
    assert RESULTS.strongest().identified == RESULTS.identified == 1
    assert Results.of(RESULTS) is RESULTS


def test_a_data_frame_has_the_columns_of_the_csv(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert RESULTS.to_pandas() == report.result_rows(RESULTS)
    assert [row["status"] for row in RESULTS.to_pandas()] == ["scored"] * 3 + ["failed"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        RESULTS.to_pandas()


def test_old_names_still_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"attempts is now .*Results\.of"):
        tried = report.attempts([BARE, AGAIN])
    with pytest.warns(DeprecationWarning, match="strongest"):
        found = report.strongest(list(tried))
    assert {person: row.psnr for person, row in found.items()} == {("photos", 0): 25.0}
