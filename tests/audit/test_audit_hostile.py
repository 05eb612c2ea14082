"""The folder of an audit may come from somebody else: nothing outside it is read or changed."""

import errno
import io
import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from seepage.audit import AuditStore, Outcome, Record, load_audit
from seepage.audit._claims import FolderLock
from seepage.audit._folder import find_damage, purge
from seepage.audit._plan import Plan
from seepage.cli import app
from seepage.cli._commands import Report
from seepage.cli._report_command import write_report
from seepage.core._checkpoint import Checkpoints
from seepage.core._construct import Component
from seepage.core._whole_file import read_plain, seal, unpack, unseal
from seepage.core.errors import SeepageError, UnreadableFile
from seepage.scoring._identification import Identification

# Files of an audit that may be links, pipes or other names of something outside.
NAMES = [
    *("plan.json", "audit.lock", "spec.toml", "environment.json", "report.html"),
    *("contact_sheet.png", "cases", "inputs", "checkpoints", "cases/a.safetensors"),
    *("cases/.b.safetensors.01234567.partial", "cases/b.1.claim", "cases/b.safetensors"),
    *("inputs/people.safetensors", f"checkpoints/{'0' * 24}.safetensors"),
]
KINDS = ["link", "dangling link", "link to a folder", "pipe"]


def planned(*names):
    who = SimpleNamespace(digest="people", tensors={"inputs": torch.zeros(1, 2)}, words=())
    return [SimpleNamespace(id=n, description=n, identity={"is": n}, target=who) for n in names]


CASES = planned("a", "b")
RECORD = Record(
    *("d", (0,), "m", Component("Gradient"), (), Component("Threat"), Component("it"), 0),
    scores={"psnr": (20.0,)},
    baselines={"mean": {"psnr": (10.0,)}},
    case="a",
    truth="people",
)


def add(store, case):
    record = Record.from_plain({**RECORD.plain(), "case": case.id})
    store.add(case, Outcome(record, torch.zeros(1, 2), torch.zeros(1, 2)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An audit with one of two cases done, and something outside it."""
    place = tmp_path_factory.mktemp("made")
    here = {"title": "Two", "spec": "title = 'Two'", "environment": {}, "cases": CASES}
    with AuditStore.create(place / "out", **here) as store:
        add(store, CASES[0])
    (place / "outside").write_text("mine")
    (place / "folder").mkdir()
    (place / "folder" / "a.safetensors").write_text("mine")
    return place


@pytest.fixture
def place(made, tmp_path):
    return shutil.copytree(made, tmp_path / "place")


def resume(folder):
    with AuditStore.resume(folder, cases=CASES) as store:
        Checkpoints(folder / "checkpoints").save("0" * 24, [torch.ones(1)])
        add(store, CASES[1])


def overwrite(folder):
    cases = planned("b", "c")
    AuditStore.create(
        folder, title="t", spec="s", environment={}, cases=cases, overwrite=True
    ).close()


def report(folder):
    shown = Console(file=io.StringIO())
    for form in ("html", "markdown", "csv", "json"):
        write_report(Report(directories=(folder,), form=form), shown)
    return shown.file.getvalue()


WAYS = {
    "resume": resume,
    "overwrite": overwrite,
    "report": report,
    "verify": find_damage,
    "purge": purge,
}


def outside(place):
    """Everything that is not in the folder of the audit."""
    files = [path for path in place.rglob("*") if place / "out" not in (path, *path.parents)]
    return {str(path): path.is_file() and path.read_bytes() for path in files}


def plant(place, name, kind):
    at = place / "out" / name
    at.parent.mkdir(exist_ok=True)
    if at.is_dir():
        shutil.rmtree(at)
    kept = at.read_bytes() if at.exists() else b"mine"
    at.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(at)
    elif kind == "dangling link":
        at.symlink_to(place / "new")
    elif kind == "link to a folder":
        at.symlink_to(place / "folder")
    else:
        # What stands outside could be used in its place.
        (place / "outside").write_bytes(kept if name.startswith(("cases/", "inputs/")) else b"mine")
        at.symlink_to("../outside" if "/" not in name else "../../outside")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_links_and_pipes_are_refused_and_nothing_outside_is_touched(place, name, kind, way):
    plant(place, name, kind)
    before = outside(place)
    said = r"got (a link|a pipe)|plan of an audit|no audit in|holds something else"
    with pytest.raises(SeepageError, match=said):
        WAYS[way](place / "out")
    assert outside(place) == before


@pytest.mark.parametrize("form", ["html", "markdown", "csv", "json"])
def test_a_report_replaces_a_link_in_its_place_and_follows_none(place, form):
    suffix = {"markdown": "md"}.get(form, form)
    names = [f".report.{suffix}.partial"] if form != "html" else []
    names += [f"report.{suffix}"] if form != "html" else []
    for name in names:
        (place / "out" / name).symlink_to(place / "outside")
    report(place / "out")
    assert (place / "outside").read_text() == "mine"
    assert not (place / "out" / f"report.{suffix}").is_symlink()


@pytest.mark.parametrize("way", WAYS)
def test_a_hard_link_to_something_outside_is_not_written_through(place, way):
    (place / "outside").unlink()
    os.link(place / "out" / "audit.lock", place / "outside")
    held = (place / "outside").read_bytes()
    with pytest.raises(SeepageError, match="is a hard link"):
        WAYS[way](place / "out")
    assert (place / "outside").read_bytes() == held


def put_record(folder, plain):
    """Put another record into the file of a case, and seal it again."""
    path = folder / "cases" / "a.safetensors"
    data = read_plain(path)
    text = plain if isinstance(plain, str) else json.dumps(plain)
    path.write_bytes(seal(unpack(data)[0], {**unseal(data), "record": text}))


ELSEWHERE = ["../../outside", "/etc/passwd", "..", ".", "a/b", "a\0b", "a\\b", "x" * 300, "c"]


@pytest.mark.parametrize("key", ["truth", "case"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_record_that_names_a_file_elsewhere_is_one_sentence_and_runs_again(place, key, name):
    put_record(place / "out", {**RECORD.plain(), key: name})
    before = outside(place)
    [said] = find_damage(place / "out")
    assert said.startswith("cases/a.safetensors is altered: ")
    assert "\n" not in said
    assert "1 file missing or altered" in report(place / "out")
    with AuditStore.resume(place / "out", cases=CASES) as store:
        assert store.records() == ()
        add(store, CASES[0])
    assert len(load_audit(place / "out").records) == 1
    assert outside(place) == before


@pytest.mark.parametrize("way", ["report", "verify", "resume"])
def test_a_case_of_another_audit_in_the_folder_is_not_one_of_this(place, way):
    out = place / "out"
    shutil.copy(out / "cases" / "a.safetensors", out / "cases" / "z.safetensors")
    shutil.copy(out / "cases" / "a.safetensors", out / "cases" / "b.safetensors")
    assert find_damage(out) == [
        "cases/b.safetensors is altered: it belongs to another case",
        "cases/z.safetensors belongs to no case of this audit",
    ]
    WAYS[way](out)
    assert load_audit(out).records[0].case == "a"
    assert (out / "cases" / "z.safetensors").exists()


def test_what_an_audit_writes_is_for_its_owner_alone(place):
    old = os.umask(0)
    try:
        fresh = place / "deep" / "fresh"
        here = {"title": "Two", "spec": "title = 'Two'", "environment": {}, "cases": CASES}
        with AuditStore.create(fresh, **here) as store:
            add(store, CASES[0])
            Checkpoints(fresh / "checkpoints").save("0" * 24, [torch.ones(1)])
            assert store.claim(CASES[1])
            during = modes(fresh)
        report(fresh)
    finally:
        os.umask(old)
    assert set(during.values()) | set(modes(fresh).values()) == {0o600, 0o700}
    assert {"plan.json", "a.safetensors", "b.1.claim", "audit.lock"} <= during.keys()


def modes(folder):
    return {p.name: p.stat().st_mode & 0o777 for p in [folder, *folder.rglob("*")]}


def flip(path, where=-1):
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)


def swap(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


DAMAGE = {
    "cases/a.safetensors is altered: its checksum": lambda o: flip(o / "cases/a.safetensors"),
    "cases/a.safetensors is altered: it is no": lambda o: flip(o / "cases/a.safetensors", 9),
    "cases/a.safetensors is altered": lambda o: swap(
        o / "cases/a.safetensors", b'psnr\\": [20.0]', b'psnr\\": [60.0]'
    ),
    "inputs/people.safetensors is altered": lambda o: flip(o / "inputs/people.safetensors"),
    "inputs/people.safetensors is missing": lambda o: shutil.rmtree(o / "inputs"),
    "spec.toml is not what the plan": lambda o: (o / "spec.toml").write_text("seeds = [1]"),
    "environment.json is missing": lambda o: (o / "environment.json").unlink(),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_what_is_missing_or_altered_is_found_said_and_made_anew(place, said):
    out = place / "out"
    assert find_damage(out) == []
    DAMAGE[said](out)
    assert any(sentence.startswith(said) for sentence in find_damage(out))
    assert CliRunner().invoke(app, ["verify", str(out)]).exit_code == 1
    if said.startswith(("cases", "inputs")):
        assert "missing or altered" in report(out)
        assert load_audit(out).records == () or load_audit(out).truth(RECORD) is None
    elif said.startswith("spec"):
        (out / "spec.toml").write_text("title = 'Two'")
    with AuditStore.resume(out, cases=CASES) as store:
        if not store.records():
            add(store, CASES[0])
    assert find_damage(out) == []
    done = CliRunner().invoke(app, ["verify", str(out)])
    assert (done.exit_code, done.output) == (0, "1 record and its files are as they were written\n")


@pytest.mark.parametrize("name", ["plan.json", "cases/a.safetensors", "inputs/people.safetensors"])
def test_a_flipped_byte_anywhere_is_noticed(place, name):
    path = place / "out" / name
    whole = path.read_bytes()
    for where in range(0, len(whole), 3):
        flip(path, where)
        with suppress(SeepageError):
            assert find_damage(place / "out"), f"byte {where} of {len(whole)}"
        path.write_bytes(whole)
    assert find_damage(place / "out") == []


def test_purging_leaves_scores_and_nothing_private(place):
    out = place / "out"
    (out / "contact_sheet.png").write_text("private")
    for name in ("0" * 24, f"race-{'0' * 24}"):
        Checkpoints(out / "checkpoints").save(name, [torch.ones(1)])
    (out / "cases" / "notes.txt").write_text("mine")
    report(out)
    assert "embeds private inputs of 1 person and guesses" in (out / "report.html").read_text()
    done = CliRunner().invoke(app, ["purge", str(out)])
    assert done.exit_code == 0, done.output
    assert "5 files removed" in done.output
    told = CliRunner().invoke(app, ["verify", str(out)]).output
    assert told.startswith("1 record is as it was written; private inputs and guesses are not")
    left = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    reports = {f"report.{end}" for end in ("html", "md", "csv", "json")}
    assert left - reports == {
        *("audit.lock", "plan.json", "cases/notes.txt", "cases/a.safetensors"),
        *("spec.toml", "environment.json"),
    }
    assert "no private inputs, and no guesses" in (out / "report.html").read_text()
    read = load_audit(out)
    assert (read.records, read.damaged, read.private) == ((RECORD,), (), False)
    assert find_damage(out) == []
    # What is added later is left out too.
    with AuditStore.resume(out, cases=CASES) as store:
        add(store, CASES[1])
    assert not (out / "inputs").exists()
    for case in CASES:
        tensors, _ = unpack(read_plain(out / "cases" / f"{case.id}.safetensors"))
        assert "guess" not in tensors


def test_a_full_disk_keeps_purge_from_its_work_in_one_sentence(place, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("seepage.audit._claims.os.pwrite", fail)
    with pytest.raises(SeepageError, match=r"cannot purge .* No space left"):
        purge(place / "out")
    assert load_audit(place / "out").private


def test_an_audit_in_use_is_not_purged(place):
    lock = FolderLock(place / "out")
    try:
        with pytest.raises(SeepageError, match="is in use by process"):
            purge(place / "out")
    finally:
        lock.release()
    assert load_audit(place / "out").truth(RECORD) is not None


def test_an_environment_that_is_no_table_is_one_sentence(place):
    plan = Plan.read(place / "out")
    replace(plan, environment=[1]).write(place / "out")
    with pytest.raises(UnreadableFile, match="'environment' is not what it should be"):
        load_audit(place / "out")


@pytest.mark.parametrize("word", ["unheard of", "", "same label ", "x" * 50_000])
def test_a_gallery_that_no_audit_has_is_refused_by_the_name_of_its_field(word):
    place = Identification(1, 99, "same label", 8.0, 3.0, True, 1e4, 1e3, 1e5)
    plain = replace(RECORD, identification=(place,)).plain()
    assert Record.from_plain(plain).identification == (place,)
    plain["identification"][0]["gallery"] = word
    with pytest.raises(UnreadableFile, match=r"field 'identification\[0\]\.gallery'"):
        Record.from_plain(plain)
