"""The main job from Python: `sp.audit.run`."""

from contextlib import nullcontext

import pytest

import seepage as sp
from seepage.audit import build_spec, find_breaches
from seepage.audit._spec_text import SpecSource, write_toml
from seepage.core.errors import InvalidValue

SPEC = {
    "controls": False,
    "title": "Tiny",
    "metrics": ["psnr"],
    "scenario": {
        "data": {"name": "photos", "people": 2, "start": 0, "pixels": 8},
        "models": [{"name": "mlp", "hidden": [8]}],
        "threats": {"knows_labels": True},
        "attacks": {"name": "analytic_fc"},
    },
}


def run_nothing(cases, _):
    assert not cases
    return []


def run(what=SPEC, out=None, **options):
    return sp.audit.run(what, out, device="cpu", **options)


def test_a_mapping_a_file_a_spec_and_cases_give_the_same_records(tmp_path):
    (tmp_path / "spec.toml").write_text(write_toml(SPEC))
    spec = build_spec(SpecSource("spec", write_toml(SPEC)))
    ways = (SPEC, tmp_path / "spec.toml", str(tmp_path / "spec.toml"), spec, spec.cases)
    scores = [[record.scores for record in run(way).records] for way in ways]
    assert len(scores[0]) == 2
    assert all(found == scores[0] for found in scores)


def test_a_directory_keeps_the_audit_and_a_second_run_needs_resume_or_overwrite(tmp_path):
    first = run(SPEC, tmp_path / "out")
    assert first.path == tmp_path / "out"
    assert first.title == "Tiny"
    with pytest.raises(InvalidValue, match="already holds an audit"):
        run(SPEC, tmp_path / "out")
    again = run(None, tmp_path / "out", resume=True, executor=run_nothing)
    assert again.records == first.records
    assert run(SPEC, tmp_path / "out", overwrite=True).complete


def test_a_temporary_audit_lasts_as_long_as_its_result():
    found = run()
    path = found.path
    assert found.guess(found.records[0]) is not None
    del found
    assert not path.exists()


def test_gates_are_checked_before_and_breaches_are_found_afterwards():
    with pytest.raises(InvalidValue, match="lpips needs that metric"):
        run(gates=["lpips=0.1"])
    found = run(gates=["psnr=60"])
    assert {leak.person for leak in find_breaches(["psnr=60"], found.records)} == {0, 1}
    assert find_breaches(["psnr=1e9"], found.records) == []


def test_a_listener_hears_of_every_case():
    heard = []

    class Listener:
        def begin(self, *, total, done, mended):
            heard.append(("begin", total, len(done), len(mended)))
            return nullcontext()

        def started(self, case):
            heard.append("started")

        def finished(self, record):
            heard.append("finished")

    run(progress=Listener())
    assert heard == [("begin", 2, 0, 0), *["started", "finished"] * 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"executor": "slurm"}, "expected executor 'local' or 'ray'"),
        ({"resume": True, "overwrite": True}, "choose one"),
        ({"what": 3}, "expected the path of a spec"),
        ({"what": {"title": object()}}, "expected a spec of words"),
    ],
)
def test_what_cannot_run_is_refused_with_a_sentence(options, words):
    with pytest.raises(InvalidValue, match=words):
        run(**options)


def test_cases_cannot_be_sent_to_workers():
    cases = build_spec(SpecSource("spec", write_toml(SPEC))).cases
    with pytest.raises(InvalidValue, match="workers build their cases from a spec"):
        run(cases, workers=2)


def test_an_audit_can_be_extended_by_cases_it_was_not_begun_with(tmp_path):
    wider = {**SPEC, "scenario": {**SPEC["scenario"], "defenses": [[], [{"name": "Sign"}]]}}
    first = run(SPEC, tmp_path / "out")
    with pytest.raises(InvalidValue, match="begun with another spec"):
        run(wider, tmp_path / "out", resume=True)
    more = run(wider, tmp_path / "out", resume=True, extend=True)
    assert more.records[:2] == first.records
    assert len(more.records) == 4
    assert more.complete
    assert more.spec == (tmp_path / "out" / "spec.toml").read_text() == write_toml(wider)
    # Fewer cases change nothing and run nothing.
    again = run(SPEC, tmp_path / "out", resume=True, extend=True, executor=run_nothing)
    assert again.records == more.records
    assert again.spec == more.spec
    assert run(wider, tmp_path / "out", resume=True, executor=run_nothing).complete
