"""What an audit leaves on the disk, and what becomes of it when things go wrong."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
import torch

import seepage as sp
from seepage.audit import Audit, AuditStore, environment, load_audit, run_case, select_targets
from seepage.audit._claims import FolderLock
from seepage.audit._folder import purge
from seepage.audit._plan import FORMAT, Plan
from seepage.audit._run_case import fail_case
from seepage.core._whole_file import pack, unpack
from seepage.core.errors import DataNotFound, InvalidValue, SeepageError, UnreadableFile
from seepage.scoring import METRICS

TEMPORARY = ".plan.json.0123abcd.partial"
PHOTOS = sp.data.load("photos", pixels=8)


def grid(**changes):
    """Six cases: three people, two seeds, an attack with a trace."""
    parts = {
        "tasks": [sp.zoo.mlp(hidden=(8,), domain=PHOTOS.domain)],
        "attacks": {"match": sp.attacks.inverting_gradients(steps=2, restarts=1)},
        "seeds": [0, 1],
        **changes,
    }
    who = select_targets(PHOTOS, people=3, batch_size=1, start=0)
    return Audit(**parts).cases(who)


CASES = grid()


def ids(store):
    return {record.case for record in store.records()}


def begin(path, cases=CASES, **options):
    here = environment("cpu")
    return AuditStore.create(
        path, title="Six", spec="title = 'Six'", environment=here, cases=cases, **options
    )


@pytest.fixture
def out(tmp_path):
    return tmp_path / "deep" / "out"


@pytest.fixture
def half(out):
    """An audit of which two of six cases are done."""
    with begin(out) as store:
        for case in CASES[:2]:
            store.add(case, run_case(case))
    return out


def test_each_result_can_be_read_as_soon_as_it_is_added(out):
    with begin(out) as store:
        assert load_audit(out).records == ()
        for count, case in enumerate(CASES[:2], 1):
            outcome = run_case(case)
            store.add(case, outcome)
            read = load_audit(out)
            assert len(read.records) == count
            assert read.records[-1] == outcome.record
            assert torch.equal(read.guess(read.records[-1]), outcome.guess)
            assert read.objective(read.records[-1]).tolist() == list(outcome.objective)
            assert torch.equal(read.truth(read.records[-1]), outcome.truth)


def test_an_audit_that_broke_off_says_what_it_was_going_to_do(half):
    read = load_audit(half)
    assert (read.title, read.spec, read.complete) == ("Six", "title = 'Six'", False)
    assert [planned.id for planned in read.planned] == [case.id for case in CASES]
    assert "match on photos #0 (" in read.planned[0].description
    assert read.environment["packages"]["torch"] == torch.__version__
    assert read.damaged == ()
    assert tomllib.loads((half / "spec.toml").read_text()) == {"title": "Six"}
    assert json.loads((half / "environment.json").read_text()) == read.environment


def test_the_private_inputs_are_kept_once_for_all_cases_that_share_them(half):
    assert CASES[0].target is CASES[1].target
    assert {path.stem for path in (half / "cases").iterdir()} == {CASES[0].id, CASES[1].id}
    assert [path.stem for path in (half / "inputs").iterdir()] == [CASES[0].target.digest]


def test_records_come_in_the_order_of_the_plan_whatever_ran_first(out):
    with begin(out) as store:
        for case in reversed(CASES[:3]):
            store.add(case, run_case(case))
    assert [record.case for record in load_audit(out).records] == [case.id for case in CASES[:3]]


def test_a_closed_form_has_no_objective_and_a_failure_no_tensors(out):
    cases = grid(attacks={"fc": sp.attacks.analytic_fc()}, seeds=[0])
    blind = grid(threats=[sp.Threat()], seeds=[0])
    with begin(out, [*cases, *blind]) as store:
        for case in (cases[0], blind[0]):
            store.add(case, run_case(case))
    read = load_audit(out)
    closed, failed = read.records
    assert read.objective(closed) is None
    assert closed.certificate["unique"] is True
    assert "needs the labels" in failed.error
    assert (read.guess(failed), read.objective(failed)) == (None, None)
    assert read.truth(failed) is not None
    assert [outcome.record for outcome in read.outcomes()] == [closed, failed]


def test_infinite_scores_come_back_infinite(out):
    record = run_case(CASES[0]).record
    perfect = replace(record, scores={"psnr": (float("inf"),), "ssim": (None,)})
    assert type(record).from_plain(json.loads(json.dumps(perfect.plain()))) == perfect


def test_resuming_leaves_what_is_done_and_runs_the_rest(half):
    with AuditStore.resume(half, cases=CASES) as store:
        assert ids(store) == {CASES[0].id, CASES[1].id}
        store.add(CASES[2], run_case(CASES[2]))
    assert len(load_audit(half).records) == 3


def test_a_record_that_is_there_stays_as_it_is(half):
    before = load_audit(half).records[0]
    outcome = run_case(CASES[0])
    with AuditStore.resume(half, cases=CASES) as store:
        store.add(CASES[0], replace(outcome, record=replace(outcome.record, data="other")))
    assert load_audit(half).records[0] == before


def trained(task):
    model = sp.zoo.mlp(hidden=(8,), domain=PHOTOS.domain, seed=5).model
    return replace(task, model=model)


CHANGES = {
    "attack": (
        {"attacks": {"fc": sp.attacks.analytic_fc()}},
        "attack was 'match' and is now 'fc'",
    ),
    "options": (
        {"attacks": {"match": sp.attacks.inverting_gradients(steps=3, restarts=1)}},
        "options was 'GradientMatching(",
    ),
    "defense": ({"defenses": [sp.Prune(0.5)]}, "defense was 'none' and is now \"Prune(ratio=0.5"),
    "weights": ({"tasks": [trained(CASES[0].task)]}, "weights was '"),
    "seeds": ({"seeds": [0, 1, 2]}, "seed '2' is new"),
    "fewer seeds": ({"seeds": [1]}, "seed '0' is gone"),
    "metrics": (
        {"metrics": [METRICS["psnr"]]},
        "metrics was 'all' and is now 'psnr'",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_spec_is_refused_with_a_word_about_what_changed(name, half):
    changed, said = CHANGES[name]
    before = load_audit(half)
    with pytest.raises(InvalidValue, match="was begun with another spec") as refused:
        AuditStore.resume(half, cases=grid(**changed))
    assert said in str(refused.value)
    assert load_audit(half) == before
    AuditStore.resume(half, cases=CASES).close()


def test_other_private_inputs_under_the_same_name_are_another_case():
    other = replace(PHOTOS, inputs=PHOTOS.inputs.flip(-1))
    [case] = Audit(tasks=[CASES[0].task], attacks={"match": CASES[0].attack}).cases(
        select_targets(other, people=1, batch_size=1, start=0)
    )
    assert case.identity.keys() == CASES[0].identity.keys()
    differing = [key for key in case.identity if case.identity[key] != CASES[0].identity[key]]
    assert differing == ["inputs"]
    assert case.id != CASES[0].id


@pytest.mark.slow
def test_a_case_has_the_same_id_in_every_process():
    code = (
        "import seepage as sp; from seepage.audit import Audit, select_targets\n"
        "photos = sp.data.load('photos', pixels=8)\n"
        "audit = Audit(tasks=[sp.zoo.mlp(hidden=(8,), domain=photos.domain)],\n"
        "    attacks={'match': sp.attacks.inverting_gradients(steps=2, restarts=1)})\n"
        "print(audit.cases(select_targets(photos, people=1, batch_size=1, start=0))[0].id)"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == CASES[0].id


def test_failed_cases_run_again_only_on_request(out):
    blind = grid(threats=[sp.Threat()])
    with begin(out, blind) as store:
        store.add(blind[0], fail_case(blind[0], "it broke"))
    with AuditStore.resume(out, cases=blind) as store:
        assert ids(store) == {blind[0].id}
    with AuditStore.resume(out, cases=blind, retry_failed=True) as store:
        assert ids(store) == set()


@pytest.mark.slow
def test_a_second_process_may_only_join_and_a_dead_one_is_in_nobodys_way(half):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from seepage.audit._claims import *\n"
            "lock = FolderLock(Path(sys.argv[1])); lock.share(); print('held', flush=True)\n"
            "time.sleep(600)",
            str(half),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        for attempt in (
            lambda: AuditStore.resume(half, cases=CASES, retry_failed=True),
            lambda: AuditStore.resume(half, cases=CASES, extend="title = 'Six'"),
            lambda: begin(half, overwrite=True),
            lambda: begin(half),
            lambda: purge(half),
        ):
            with pytest.raises(InvalidValue, match=f"is in use by process {holder.pid}; wait"):
                attempt()
        assert len(load_audit(half).records) == 2
        with AuditStore.resume(half, cases=CASES) as joined:
            assert not joined.alone
            assert ids(joined) == {CASES[0].id, CASES[1].id}
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    AuditStore.resume(half, cases=CASES).close()


def test_a_truncated_case_is_named_and_runs_again(half):
    path = half / "cases" / f"{CASES[1].id}.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    read = load_audit(half)
    assert read.damaged == (path,)
    assert [record.case for record in read.records] == [CASES[0].id]
    assert read.guess(read.records[0]) is not None
    with AuditStore.resume(half, cases=CASES) as store:
        assert store.mended == (path,)
        assert ids(store) == {CASES[0].id}
        store.add(CASES[1], run_case(CASES[1]))
    assert load_audit(half).damaged == ()


def test_truncated_private_inputs_are_written_anew_and_no_case_runs_again(half):
    path = half / "inputs" / f"{CASES[0].target.digest}.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    assert load_audit(half).damaged == (path,)
    with AuditStore.resume(half, cases=CASES) as store:
        assert store.mended == (path,)
        assert ids(store) == {CASES[0].id, CASES[1].id}
    read = load_audit(half)
    assert torch.equal(read.truth(read.records[0]), CASES[0].target.batch.inputs)


def damage_title(plan):
    plan.write_bytes(plan.read_bytes().replace(b'"Six"', b'"Ten"', 1))


DAMAGED = {
    "altered": damage_title,
    "cut": lambda plan: plan.write_bytes(plan.read_bytes()[:-30]),
    "cut early": lambda plan: plan.write_bytes(plan.read_bytes()[:120]),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_plan_that_is_damaged_is_named_and_not_touched(half, kind):
    plan = half / "plan.json"
    whole = plan.read_bytes()
    DAMAGED[kind](plan)
    before = {name: held for name, held in contents(half).items() if name != "audit.lock"}
    for way in ("report", "resume", "overwrite"):
        with pytest.raises(UnreadableFile, match=r"plan\.json' is damaged.* in another folder"):
            EVERY_WAY[way](half)
    after = {name: held for name, held in contents(half).items() if name != "audit.lock"}
    assert after == before
    plan.write_bytes(whole)
    assert len(load_audit(half).records) == 2


@pytest.mark.parametrize("content", [b"", b"no plan at all, but long enough " * 99])
def test_a_file_that_is_no_plan_is_refused_in_one_sentence(content, half):
    (half / "plan.json").write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"plan\.json"):
        load_audit(half)


def test_a_plan_that_names_a_case_twice_is_refused(half):
    plan = Plan.read(half)
    replace(plan, cases=(*plan.cases, plan.cases[0])).write(half)
    with pytest.raises(UnreadableFile, match="it names a case twice"):
        load_audit(half)


def contents(folder):
    """Every file and link below a folder, with what it holds."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


EVERY_WAY = {
    "report": load_audit,
    "resume": lambda path: AuditStore.resume(path, cases=CASES),
    "plain run": lambda path: begin(path),
    "overwrite": lambda path: begin(path, overwrite=True),
}


def old_database(path, version=5):
    header = bytearray(100)
    header[:16], header[60:64], header[68:72] = b"SQLite format 3\0", version.to_bytes(4), b"Seep"
    path.write_bytes(header + bytes(4000))


@pytest.mark.parametrize("way", EVERY_WAY)
def test_an_audit_of_the_old_format_is_refused_and_untouched(tmp_path, way):
    old_database(tmp_path / "audit.sqlite")
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "a.safetensors").write_bytes(b"a guess")
    before = contents(tmp_path)
    with pytest.raises(UnreadableFile, match=r"older format 5, which seepage 0\.3 and") as refused:
        EVERY_WAY[way](tmp_path)
    assert "choose another folder, or delete this one by hand" in str(refused.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("way", EVERY_WAY)
def test_an_audit_of_a_newer_format_is_refused_and_untouched(half, way):
    plan = half / "plan.json"
    plan.write_bytes(
        plan.read_bytes().replace(b'audit": %d,' % FORMAT, b'audit": %d,' % (FORMAT + 1))
    )
    before = contents(half)
    with pytest.raises(UnreadableFile, match=f"newer format {FORMAT + 1}; use the version"):
        EVERY_WAY[way](half)
    assert contents(half) == before


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_folder_with_two_audits_is_refused_and_untouched(half, way):
    old_database(half / "audit.sqlite")
    before = contents(half)
    with pytest.raises(UnreadableFile, match="holds two audits"):
        EVERY_WAY[way](half)
    assert contents(half) == before


FOREIGN = {
    "text": lambda path: path.write_text("my notes on audits"),
    "nothing": lambda path: path.write_bytes(b""),
    "other JSON": lambda path: path.write_text('{"seepage": 6, "plan": "infrastructure"}'),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_only_called_plan_json_makes_no_audit(tmp_path, kind, way):
    FOREIGN[kind](tmp_path / "plan.json")
    for folder in ("cases", "inputs", "checkpoints"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights.safetensors").write_text("mine")
    (tmp_path / "report.html").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(SeepageError, match=r"something else|plan of an audit|no audit in"):
        EVERY_WAY[way](tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_link_to_the_plan_of_an_audit_makes_no_audit(half, tmp_path, way):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "plan.json").symlink_to(half / "plan.json")
    before = contents(tmp_path)
    with pytest.raises(SeepageError, match=r"something else|got another file or a link"):
        EVERY_WAY[way](tmp_path / "mine")
    assert contents(tmp_path) == before


def test_reading_where_there_is_no_audit_says_so(tmp_path):
    with pytest.raises(DataNotFound, match="no audit in"):
        load_audit(tmp_path)


def test_a_full_disk_loses_nothing_that_was_stored(half):
    outcome = run_case(CASES[2])
    before = load_audit(half)
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    with AuditStore.resume(half, cases=CASES) as store:
        # As small as a disk with a kilobyte left: writing an artifact fails half-way.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, free[1]))
        try:
            with pytest.raises(UnreadableFile, match=r"cannot write to .* --resume goes on"):
                store.add(CASES[2], outcome)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, free)
        assert load_audit(half) == before
        store.add(CASES[2], outcome)
    assert len(load_audit(half).records) == 3


def test_an_audit_is_replaced_only_on_request_and_nothing_else_with_it(half):
    for mine in (half / "notes.txt", half / "cases" / "notes.txt"):
        mine.write_text("mine")
    with pytest.raises(InvalidValue, match="already holds an audit; --resume it, --overwrite it"):
        begin(half)
    assert len(load_audit(half).records) == 2
    begin(half, overwrite=True).close()
    assert load_audit(half).records == ()
    assert [path.name for path in (half / "cases").iterdir()] == ["notes.txt"]
    assert (half / "notes.txt").read_text() == "mine"


def test_overwriting_removes_what_the_audit_wrote_and_no_tensors_of_others(half):
    theirs = {half / folder / "mine.safetensors" for folder in ("cases", "inputs", "checkpoints")}
    ours = {
        half / "checkpoints" / f"{'0' * 24}.safetensors",
        half / "checkpoints" / f".{'1' * 24}.safetensors.0123abcd.partial",
        half / "cases" / f".{CASES[2].id}.safetensors.0123abcd.partial",
        half / "cases" / f"{CASES[2].id}.1.claim",
        *(half / "cases").iterdir(),
        *(half / "inputs").iterdir(),
    }
    (half / "checkpoints").mkdir()
    for path in theirs | ours:
        path.write_text("too short to be whole")
    begin(half, overwrite=True).close()
    assert {path for path in half.rglob("*.*") if path.parent != half} == theirs


def test_resuming_mends_what_the_audit_wrote_and_no_tensors_of_others(half):
    theirs = [half / at / "mine.safetensors" for at in ("cases", "inputs", "checkpoints")]
    (half / "checkpoints").mkdir()
    for path in theirs:
        path.write_text("too short to be whole")
    assert load_audit(half).damaged == ()
    with AuditStore.resume(half, cases=CASES) as store:
        assert store.mended == ()
    assert [path.read_text() for path in theirs] == ["too short to be whole"] * 3


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name", ["cases", "inputs", "checkpoints", "spec.toml", "contact_sheet.png", "audit.lock"]
)
def test_links_in_an_audit_are_not_followed(half, tmp_path, name, overwrite):
    outside = tmp_path / "outside"
    if (half / name).exists():
        (half / name).rename(outside)
    elif name == "checkpoints":
        outside.mkdir()
        (outside / f"{'0' * 24}.safetensors").write_text("mine")
    else:
        outside.write_text("mine")
    (half / name).symlink_to(outside)
    before = contents(tmp_path)
    with pytest.raises(InvalidValue, match=f"{name}', got a link, which is never followed"):
        EVERY_WAY["overwrite" if overwrite else "resume"](half)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("way", ["report", "resume", "overwrite"])
@pytest.mark.parametrize("field", ["id", "inputs"])
@pytest.mark.parametrize("name", ["../mine", "a/../../mine", "/mine", "..", "a.b"])
def test_a_plan_that_leads_out_of_the_directory_is_refused(half, field, name, way):
    for mine in (half / "mine.safetensors", half.parent / "mine.safetensors"):
        mine.write_text("mine")
    plan = Plan.read(half)
    replace(plan, cases=(replace(plan.cases[0], **{field: name}), *plan.cases[1:])).write(half)
    before = {k: v for k, v in contents(half.parent).items() if "audit.lock" not in k}
    with pytest.raises(UnreadableFile, match="expected a name"):
        EVERY_WAY[way](half)
    assert {k: v for k, v in contents(half.parent).items() if "audit.lock" not in k} == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "thesis.tex",
        "report.html",
        "spec.toml",
        "environment.json",
        "contact_sheet.png",
        "audit.lock",
        ".plan.partial",
        "audit.sqlite",
    ],
)
def test_a_directory_of_something_else_is_never_touched(tmp_path, name, overwrite):
    (tmp_path / name).write_text("years of work")
    with pytest.raises(InvalidValue, match="holds something else"):
        begin(tmp_path, overwrite=overwrite)
    assert contents(tmp_path) == {name: b"years of work"}


@pytest.mark.parametrize("holds_plan", [False, True])
def test_an_audit_that_is_being_begun_is_in_use(out, holds_plan):
    if holds_plan:
        begin(out).close()
    out.mkdir(parents=True, exist_ok=True)
    (out / TEMPORARY).write_bytes(b"")
    lock = FolderLock(out)
    try:
        before = contents(out)
        for overwrite in (False, True):
            with pytest.raises(InvalidValue, match=f"is in use by process {os.getpid()}; wait"):
                begin(out, overwrite=overwrite)
        assert contents(out) == before
    finally:
        lock.release()
    begin(out, overwrite=True).close()
    assert not (out / TEMPORARY).exists()


def test_a_moved_audit_is_still_one(half, tmp_path):
    moved = shutil.move(half, tmp_path / "moved")
    begin(moved, overwrite=True).close()
    assert not (moved / "cases").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SeepageError, match="choose another --out"):
        begin(tmp_path / "file" / "out")


def test_tensors_and_words_survive_packing():
    tensors = {"a": torch.arange(6.0).reshape(2, 3).mT, "b": torch.tensor(True)}
    read, words = unpack(pack(tensors, {"who": "we"}))
    assert words == {"who": "we"}
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(UnreadableFile, match="expected whole safetensors"):
        unpack(pack(tensors)[:-1])
