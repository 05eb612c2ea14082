"""An encrypted audit: nothing private lies in its folder, and nobody reads it without the key."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.audit.artifacts import Artifacts
from seepage.audit.verify import find_damage, purge
from seepage.cli import app
from seepage.core.checkpoint import Checkpoints
from seepage.core.encryption import VARIABLE, Key, find_key
from seepage.core.errors import SeepageError, UnreadableFile

pytest.importorskip("cryptography")

SPEC = {
    "title": "Hidden",
    "metrics": ["psnr"],
    "controls": False,
    "scenario": {
        "data": {"name": "digits", "people": 2, "batch_size": 1, "pixels": 8},
        "models": {"name": "mlp", "hidden": [16]},
        "threats": {"knows_labels": True},
        "attacks": [
            {"name": "analytic_fc"},
            {"name": "inverting_gradients", "steps": 2, "restarts": 1},
        ],
    },
}


def make_key(path, *, byte=b"k"):
    path.write_bytes(byte * 32)
    path.chmod(0o600)
    return path


def seepage(*words):
    ended = CliRunner().invoke(app, [str(word) for word in words])
    return ended.exit_code, " ".join(ended.output.split())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same audit without a key and with one, each as `seepage audit` leaves it."""
    place = tmp_path_factory.mktemp("encrypted")
    make_key(place / "key")
    spec = place / "spec.toml"
    spec.write_text(sp.audit.spec_text.write_toml(SPEC))
    common = ("audit", spec, "--device", "cpu", "--quiet", "--out")
    before = os.environ.pop(VARIABLE, None)
    try:
        assert seepage(*common, place / "plain")[0] == 0
        code, said = seepage(*common, place / "hidden", "--encrypt-key", place / "key")
        assert code == 0, said
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
    return place


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy, with the key in the environment."""
    copied = tmp_path / "place"
    shutil.copytree(made, copied)
    monkeypatch.setenv(VARIABLE, str(copied / "key"))
    return copied


def private_bytes(result):
    """What tells of a private input or a guess: rows as numbers, and whole pictures as pixels."""
    for record in result.records:
        for tensor in (result.truth(record), result.guess(record)):
            assert tensor is not None
            for row in tensor.flatten(0, -2):
                if row.unique().numel() > 3:
                    yield row.to(torch.float32).numpy().tobytes()
            yield (tensor[0].clamp(0, 1) * 255).round().to(torch.uint8).numpy().tobytes()


def read_everything(folder):
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def test_no_private_input_and_no_guess_lies_in_the_folder(place, monkeypatch):
    hidden = load_audit(place / "hidden")
    sought = list(private_bytes(hidden))
    assert len(sought) > 8
    held = read_everything(place / "hidden")
    assert not any(part in data for part in sought for data in held)
    # The same search finds them where they are not encrypted.
    monkeypatch.delenv(VARIABLE)
    plain = read_everything(place / "plain")
    assert sum(any(part in data for data in plain) for part in sought) > len(sought) / 2


def test_no_picture_lies_in_the_folder(place):
    plain, hidden = ((place / name) for name in ("plain", "hidden"))
    assert (plain / "contact_sheet.png").exists()
    assert b"data:image" in (plain / "report.html").read_bytes()
    assert not (hidden / "contact_sheet.png").exists()
    assert b"data:image" not in (hidden / "report.html").read_bytes()
    assert "holds scores only" in (hidden / "report.html").read_text()


def test_what_is_read_with_the_key_is_what_was_found_without_encryption(place):
    hidden = load_audit(place / "hidden")
    plain = load_audit(place / "plain")
    for one, other in zip(hidden.records, plain.records, strict=True):
        assert one.scores == other.scores
        assert torch.equal(hidden.truth(one), plain.truth(other))
        assert torch.equal(hidden.guess(one), plain.guess(other))


def test_report_verify_and_resume_work_with_the_key(place):
    hidden, page = place / "hidden", place / "elsewhere.html"
    key = ("--encrypt-key", place / "key")
    assert seepage("verify", hidden, *key)[0] == 0
    assert seepage("report", hidden, *key)[0] == 0
    assert b"data:image" not in (hidden / "report.html").read_bytes()
    assert seepage("report", hidden, "--out", page, *key)[0] == 0
    assert b"data:image" in page.read_bytes()
    artifact = next((hidden / "artifacts").iterdir())
    artifact.write_bytes(artifact.read_bytes()[:-1])
    assert seepage("verify", hidden, *key)[0] == 1
    assert seepage("audit", "--resume", "--quiet", "--out", hidden, *key)[0] == 0
    assert find_damage(hidden) == []
    assert load_audit(hidden).complete


@pytest.mark.parametrize("wrong", ["none", "another"])
@pytest.mark.parametrize("command", ["report", "verify", "resume"])
def test_without_the_key_one_sentence_comes(place, monkeypatch, command, wrong):
    if wrong == "none":
        monkeypatch.delenv(VARIABLE)
    else:
        monkeypatch.setenv(VARIABLE, str(make_key(place / "other", byte=b"o")))
    before = {path.name for path in (place / "hidden").rglob("*")}
    held = read_everything(place / "hidden" / "artifacts")
    words = ("audit", "--resume", "--out") if command == "resume" else (command,)
    with pytest.raises(SeepageError) as caught:
        app([*words, str(place / "hidden")], standalone_mode=False)
    assert (
        "another key" in str(caught.value) if wrong == "another" else "its key" in str(caught.value)
    )
    assert len(str(caught.value).splitlines()) == 1
    assert {path.name for path in (place / "hidden").rglob("*")} == before
    assert read_everything(place / "hidden" / "artifacts") == held


def test_files_cannot_be_swapped(place):
    hidden = load_audit(place / "hidden")
    one, other = (
        place / "hidden" / "artifacts" / f"{r.case}.safetensors" for r in hidden.records[:2]
    )
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    swapped = Artifacts(place / "hidden" / "artifacts", hidden.key)
    with pytest.raises(UnreadableFile, match="was altered"):
        swapped.read(hidden.records[0].case)
    assert hidden.guess(hidden.records[0]) is None


def test_every_flipped_byte_is_noticed():
    key = Key(b"k" * 32)
    data = key.encrypt(b"who", name="a")
    for at in range(len(data)):
        with pytest.raises(UnreadableFile):
            key.decrypt(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], name="a")
    for part in (b"", data[:10], data[:28], data[:-1]):
        with pytest.raises(UnreadableFile):
            key.decrypt(part, name="a")
    assert key.encrypt(b"who", name="a") != data, "the nonce is new for each file"
    assert key.decrypt(data, name="a") == b"who"


def test_checkpoints_are_encrypted_and_bound_to_their_name(tmp_path):
    tensors = [torch.arange(100.0)]
    saved = Checkpoints(tmp_path, key=Key(b"k" * 32))
    saved.save("a" * 24, tensors)
    saved.save("b" * 24, [torch.zeros(100)])
    first, second = (tmp_path / f"{name * 24}.safetensors" for name in "ab")
    assert np.arange(4, dtype=np.float32).tobytes() not in first.read_bytes()
    assert torch.equal(saved.load("a" * 24)[0], tensors[0])
    assert not replace(saved, key=Key(b"o" * 32)).is_whole("a" * 24)
    shutil.copy(second, first)
    assert not saved.is_whole("a" * 24)


@pytest.mark.slow
def test_workers_encrypt_their_checkpoints(place):
    out = place / "workers"
    spec = {**SPEC, "scenario": {**SPEC["scenario"], "attacks": SPEC["scenario"]["attacks"][1]}}
    found = sp.audit.run(spec, out, device="cpu", workers=2)
    assert found.key is not None
    assert find_damage(out) == []


def test_an_audit_begun_without_a_key_is_not_resumed_with_one(place):
    with pytest.raises(SeepageError, match="begun without encryption"):
        sp.audit.run(SPEC, place / "plain", device="cpu", resume=True)


def test_purge_needs_no_key(place, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    assert purge(place / "hidden") > 0
    assert not load_audit(place / "hidden").private


def test_the_hint_names_the_key(place):
    from seepage.cli.commands import Audit

    words = Audit(out=place, encrypt_key=Path("a key")).resuming()
    assert words[-2:] == ["--encrypt-key", "a key"]


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"k" * 32, 0o644, "mode 0644"),
        (b"k" * 32, 0o640, "mode 0640"),
        (b"short", 0o600, "hexadecimal"),
        (b"\xff" * 64, 0o600, "hexadecimal"),
        (b"6b" * 31, 0o600, "hexadecimal"),
        (None, 0o600, "no key at"),
        ("folder", 0o600, "folder, pipe or device"),
        ("pipe", 0o600, "folder, pipe or device"),
    ],
)
def test_a_bad_key_is_one_sentence(tmp_path, monkeypatch, content, mode, said):
    path = tmp_path / "key"
    if content == "folder":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(SeepageError, match=said) as caught:
        find_key()
    assert len(str(caught.value).splitlines()) == 1
    assert "kkkk" not in str(caught.value)


def test_a_key_is_bytes_or_hexadecimal_digits(tmp_path, monkeypatch):
    path = make_key(tmp_path / "key")
    monkeypatch.setenv(VARIABLE, str(path))
    assert find_key() == Key(b"k" * 32)
    path.write_text(f"{(b'k' * 32).hex()}\n")
    assert find_key() == Key(b"k" * 32)
    monkeypatch.delenv(VARIABLE)
    assert find_key() is None
