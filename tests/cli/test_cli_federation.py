"""`seepage audit --capture FOLDER`: many clients and rounds as one audit."""

import re
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.capture import Capture, Setting
from seepage.cli import app
from seepage.core.errors import InvalidValue

NETWORK = """
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))
"""
CLIENTS, ROUNDS = 3, 2
WARDS = [sp.capture.hashed(f"ward {number}", salt=b"of this study") for number in range(CLIENTS)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Captures of three clients in two rounds of training; one is missing, two have no truth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fed_network", raising=False)
    (tmp_path / "fed_network.py").write_text(NETWORK)
    import fed_network

    captures, truths = tmp_path / "captures", tmp_path / "truths"
    captures.mkdir()
    truths.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = fed_network.build()
    photos = sp.data.bundled("photos", size=CLIENTS * ROUNDS)
    inputs = nn.functional.interpolate(photos.inputs, size=8, mode="area").contiguous()
    for number in range(ROUNDS):
        for client in range(CLIENTS):
            if (number, client) == (1, 2):
                continue
            one = slice(number * CLIENTS + client, number * CLIENTS + client + 1)
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs[one]), photos.labels[one]).backward()
            gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
            about = Setting(batch_size=1, shape=(3, 8, 8), round=number, client=WARDS[client])
            name = f"round-{number}-{client}.safetensors"
            capture = Capture.of(model, gradient, form="gradient", setting=about)
            sp.capture.save(capture, captures / name)
            if client != 1:
                truth = {"inputs": inputs[one].clone(), "labels": photos.labels[one].clone()}
                save_file(truth, truths / name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return tmp_path


@pytest.fixture
def again(place):
    """Replace the captures: three rounds with one photo of a client, then one with another photo.

    Returns a function that does so, with the name of the client in every round.
    """

    def write(*wards):
        import fed_network

        for path in [*(place / "captures").iterdir(), *(place / "truths").iterdir()]:
            path.unlink()
        photos = sp.data.bundled("photos", size=2)
        inputs = nn.functional.interpolate(photos.inputs, size=8, mode="area").contiguous()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            model = fed_network.build()
        for number, (ward, one) in enumerate(zip(wards, (0, 0, 0, 1), strict=True)):
            truth = {"inputs": inputs[[one]], "labels": photos.labels[[one]]}
            model.zero_grad()
            nn.functional.cross_entropy(model(truth["inputs"]), truth["labels"]).backward()
            gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
            about = Setting(batch_size=1, shape=(3, 8, 8), round=number, client=ward)
            capture = Capture.of(model, gradient, form="gradient", setting=about)
            sp.capture.save(capture, place / "captures" / f"{number}.safetensors")
            save_file(truth, place / "truths" / f"{number}.safetensors")
        return place

    return write


def audit(*options, out="out"):
    arguments = ["audit", "--model", "fed_network:build", "--steps", "20", "--out", out, "--plain"]
    return CliRunner().invoke(app, [*arguments, *options])


def test_a_folder_of_captures_is_one_audit_with_clients_and_rounds_as_axes(place):
    save_file({"weights": torch.ones(2)}, place / "captures" / "other.safetensors")
    (place / "captures" / "link.safetensors").symlink_to(place / "truths" / "round-0-0.safetensors")
    run = audit("--capture", "captures", "--truth", "truths")
    assert run.exit_code == 0, run.output
    assert "other.safetensors is left out" in run.output
    assert "link.safetensors" not in run.output
    assert "3 clients, 2 rounds" in run.output
    found = load_audit(place / "out")
    assert len(found.records) == 5
    scored = [record for record in found.records if record.scores]
    assert len(scored) == 3
    assert all(record.scores["exact"] == (1.0,) for record in scored)
    assert all(record.certificate["unique"] for record in found.records)
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    section = page.partition('id="federation"')[2].partition("</section>")[0]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in section.split("<tr>")[2:]]
    by_ward = dict(zip(sorted(ward[:8] for ward in WARDS), rows, strict=True))
    for ward, said in zip(
        WARDS, ("reconstructed", "right to 8 bits", "reconstructed"), strict=True
    ):
        assert f'<th scope="row">{ward[:8]}</th>' in section
        assert said in by_ward[ward[:8]][0]
    assert "-" in by_ward[WARDS[2][:8]][1]
    assert "Each round was attacked alone." in section


def test_a_page_of_one_round_does_not_speak_of_several(place):
    for path in (place / "captures").glob("round-1-*"):
        path.unlink()
    assert audit("--capture", "captures").exit_code == 0
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert "By client and by round" in page
    assert "Each round was attacked alone." not in page


def test_a_folder_without_captures_of_the_model_is_refused_in_one_sentence(place):
    (place / "empty").mkdir()
    run = audit("--capture", "empty")
    assert isinstance(run.exception, InvalidValue)
    assert "found none that can be audited" in str(run.exception)


def test_two_files_of_one_client_and_round_are_not_mixed(place):
    captures = place / "captures"
    (captures / "copy.safetensors").write_bytes((captures / "round-0-0.safetensors").read_bytes())
    run = audit("--capture", "captures", "--dry-run")
    assert "is in another file already" in run.output.replace("\n", " ")


def test_without_the_truth_the_headline_counts_updates(place):
    run = audit("--capture", "captures")
    said = " ".join(run.output.split())
    assert "of 5 of 5 updates came back" in said or "explains 5 of 5 updates" in said, said


@pytest.mark.parametrize(
    ("wards", "people", "senders"),
    [
        ((WARDS[0],) * 4, 2, "1 client"),
        # Without a recorded client the inputs alone tell.
        (("",) * 4, 2, "4 updates"),
        # Two clients may hold equal inputs of two people.
        ((WARDS[0], WARDS[0], WARDS[1], WARDS[0]), 3, "2 clients"),
    ],
)
def test_whoever_is_in_several_rounds_counts_once(again, wards, people, senders):
    place = again(*wards)
    run = audit(
        "--capture", "captures", "--truth", "truths", "--fail-above", f"identified={people}"
    )
    said = " ".join(run.output.split())
    assert run.exit_code == 0, run.output
    assert f"{people} of {people} people were identified: {people} images reconstructed" in said
    assert "In 4 captured updates the same input of one client counts as one person" in said
    assert f"Federation captures: {senders}, 4 rounds" in said
    found = load_audit(place / "out")
    assert len(found.records) == 4
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert f"private inputs of {people} people" in page
    lower = f"identified={people - 1}"
    assert audit("--resume", "--fail-above", lower).exit_code != 0


def test_truths_that_belong_to_no_capture_are_not_passed_over(place):
    (place / "empty").mkdir()
    file = next((place / "truths").iterdir())
    for truth, said in [
        (file, "expected --truth to name a folder"),
        ("nowhere", "expected --truth to name a folder"),
        ("empty", "expected files in empty with the names of captures"),
    ]:
        refused = audit("--capture", "captures", "--truth", str(truth))
        assert isinstance(refused.exception, InvalidValue)
        assert said in str(refused.exception)
    assert not (place / "out").exists()
