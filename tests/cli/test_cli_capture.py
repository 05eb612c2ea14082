"""`seepage audit --capture`: from the file of an update to a report, with the truth and without."""

import sys
from dataclasses import replace

import numpy
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.audit._case import describe_threat
from seepage.capture import Capture, Setting, load
from seepage.cli import app
from seepage.core.errors import InvalidValue, SeepageError, UnreadableFile
from seepage.report._dossier_sources import read_source

NETWORK = """
from torch import nn


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))


def deep():
    layers = [layer for _ in range(7) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
    first = nn.Flatten(), nn.Linear(192, 64), nn.Sigmoid()
    return nn.Sequential(*first, *layers, nn.Linear(64, 10))


def sized(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


def searched():
    first = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(54, 10))
"""
SETTING = {"batch_size": 1, "shape": (3, 8, 8)}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a network of the user's own, a truth and captures in three forms."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_network", raising=False)
    (tmp_path / "own_network.py").write_text(NETWORK)
    import own_network

    batch = sp.data.bundled("photos", size=1)
    inputs = torch.nn.functional.interpolate(batch.inputs, size=8, mode="area").contiguous()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = own_network.network()
    torch.nn.functional.cross_entropy(model(inputs), batch.labels).backward()
    gradient = {n: p.grad for n, p in model.named_parameters()}
    forms = {
        "gradient": gradient,
        "difference": {n: -0.5 * g for n, g in gradient.items()},
        "weights_after": {n: p.detach() - 0.5 * p.grad for n, p in model.named_parameters()},
    }
    for form, update in forms.items():
        setting = Setting(lr=0.5, **SETTING)
        capture = Capture.of(model, update, form=form, setting=setting)
        sp.capture.save(capture, tmp_path / f"{form}.safetensors")
    wrong = Capture.of(model, gradient, form="difference", setting=Setting(lr=0.5, **SETTING))
    sp.capture.save(wrong, tmp_path / "wrong.safetensors")
    save_file({"inputs": inputs, "labels": batch.labels}, tmp_path / "truth.safetensors")
    return tmp_path


def audited(*arguments):
    command = ["audit", "--model", "own_network:network", "--steps", "5", *arguments]
    return CliRunner().invoke(app, command)


@pytest.mark.parametrize("form", ["gradient", "difference", "weights_after"])
def test_a_capture_in_any_form_is_audited_against_the_truth(place, form):
    done = audited("--capture", f"{form}.safetensors", "--truth", "truth.safetensors")
    assert done.exit_code == 0, done.output
    (record,) = load_audit("seepage-audit").records
    assert record.attack.name == "auto"
    assert record.race.chosen == ("analytic_fc",)
    assert record.scores["psnr"][0] > 60
    assert record.certificate["unique"]
    assert (place / "seepage-audit" / "report.html").is_file()
    assert "rgap does not apply" in done.output


@pytest.mark.parametrize("write", [torch.save, lambda tensors, path: numpy.savez(path, **tensors)])
def test_an_update_that_is_no_capture_yet_says_how_to_make_one(place, write, refused):
    kept = {"0.weight": torch.zeros(2)}
    write(kept, place / "delta.npz")
    said = refused("audit", "--capture", "delta.npz", "--model", "own_network:network")
    assert "which could run code and is refused" in said
    assert "sp.capture.Capture.of" in said


def test_a_batch_size_that_the_capture_contradicts_is_refused(place, refused):
    command = ["--capture", "gradient.safetensors", "--model", "own_network:network"]
    said = refused("audit", *command, "--batch-size", 5)
    assert "records a batch of 1, but a batch size of 5 is given; leave it out" in said


def test_without_the_truth_the_report_says_what_can_be_said(place):
    done = audited("--capture", "gradient.safetensors", "--out", "out")
    assert done.exit_code == 0, done.output
    assert "came back, proved right to 8 bits" in done.output
    audit = load_audit("out")
    assert all(not record.scores and record.error is None for record in audit.records)
    assert audit.truth(audit.records[0]) is None
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert "no truth to compare it with" in page
    assert page.count("data:image/png") >= 1
    assert (place / "out" / "contact_sheet.png").is_file()
    for form in ("markdown", "csv", "json"):
        assert CliRunner().invoke(app, ["report", "out", "--format", form]).exit_code == 0
    assert "residual" in (place / "out" / "report.md").read_text(encoding="utf-8")


def test_the_assumed_range_of_a_capture_is_written_down_with_and_without_the_truth(place):
    seen = audited("--capture", "gradient.safetensors", "--truth", "truth.safetensors")
    said = "inputs are assumed to lie in [0, 1], since the capture declares no other bounds"
    assert said in " ".join(seen.output.split())
    audited("--capture", "gradient.safetensors", "--out", "blind")
    for folder in ("seepage-audit", "blind"):
        assert said in (place / folder / "spec.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "No defense was assumed behind the captured update; if the client used one"),
        (["--defense", "none"], "No defense was assumed behind the captured update"),
        (["--defense", "Clip:max_norm=1000"], "Assumed behind the captured update, as given: Clip"),
    ],
)
@pytest.mark.parametrize("truth", [[], ["--truth", "truth.safetensors"]])
def test_the_report_says_which_defense_was_assumed_behind_a_capture(place, given, said, truth):
    done = audited("--capture", "gradient.safetensors", "--out", "out", *given, *truth)
    assert done.exit_code == 0, done.output
    assert said in " ".join(done.output.split())
    assert said in (place / "out" / "report.html").read_text(encoding="utf-8")
    assert load_audit("out").complete


def test_the_defense_that_is_assumed_is_simulated(place):
    [bare] = _attack_behind("Clip:max_norm=1000")
    [clipped] = _attack_behind("Clip:max_norm=0.001")
    # The update was not clipped: assuming that it was, no guess explains it.
    assert bare.residual < 1e-3 < 0.1 < clipped.residual


def _attack_behind(defense):
    out = defense.partition("=")[2]
    done = audited("--capture", "gradient.safetensors", "--defense", defense, "--out", out)
    assert done.exit_code == 0, done.output
    return load_audit(out).records


def test_a_capture_takes_one_defense(place, refused):
    command = ["--capture", "gradient.safetensors", "--model", "own_network:network"]
    said = refused("audit", *command, "--defense", "Sign", "--defense", "none")
    assert "expected one --defense with --capture, the one that the client used" in said


def test_a_dossier_names_the_weights_that_were_sent_and_strangers_that_were_made_up(place):
    weights = []
    for number, out in enumerate(("first", "second")):
        torch.manual_seed(number)  # the user's network starts from other weights
        audited("--capture", "gradient.safetensors", "--truth", "truth.safetensors", "--out", out)
        found = read_source(place / out)
        weights.append(found.about["digests of weights"])
        assert any("strangers were made up" in note for note in found.notes)
    assert weights[0] == weights[1]
    held = load("gradient.safetensors")
    moved = {name: tensor + 1 for name, tensor in held.parameters.items()}
    sp.capture.save(replace(held, parameters=moved), "gradient.safetensors")
    audited("--capture", "gradient.safetensors", "--truth", "truth.safetensors", "--out", "third")
    assert read_source(place / "third").about["digests of weights"] != weights[0]


def test_nobody_is_said_to_have_come_back_where_the_layer_that_read_them_is_rounding(place):
    import own_network

    batch = sp.data.load("photos", pixels=8).batch(1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = own_network.deep()
    torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
    update = {n: p.detach() - 0.1 * p.grad for n, p in model.named_parameters()}
    capture = Capture.of(model, update, form="weights_after", setting=Setting(lr=0.1, **SETTING))
    sp.capture.save(capture, "deep.safetensors")
    arguments = ["--model", "own_network:deep", "--capture", "deep.safetensors", "--steps", "5"]
    done = CliRunner().invoke(app, ["audit", *arguments, "--out", "out"])
    assert done.exit_code == 0, done.output
    assert "proved right" not in done.output
    assert not any(r.certificate and r.certificate["unique"] for r in load_audit("out").records)


def test_a_gate_without_the_truth_is_refused_before_anything_runs(place):
    gated = ("--capture", "gradient.safetensors", "--out", "out", "--fail-above", "psnr=20")
    refused = audited(*gated)
    assert isinstance(refused.exception, InvalidValue)
    assert str(refused.exception).startswith(
        "--fail-above compares with the truth, which there is none of behind gradient.safetensors"
    )
    assert not (place / "out").exists()
    assert audited(*gated, "--truth", "truth.safetensors").exit_code == 3


def test_what_comes_back_does_not_depend_on_whether_the_truth_is_given(place):
    audited("--capture", "gradient.safetensors", "--out", "blind")
    audited("--capture", "gradient.safetensors", "--truth", "truth.safetensors", "--out", "seen")
    blind, seen = load_audit("blind"), load_audit("seen")
    assert len(blind.records) == len(seen.records) == 1
    for one, other in zip(blind.records, seen.records, strict=True):
        assert torch.equal(blind.guess(one), seen.guess(other))


def test_public_data_are_rehearsed_on_and_the_truth_does_not_change_the_choice(place):
    import own_network

    batch = sp.data.load("photos", pixels=8).take([3])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = own_network.searched()
    torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
    update = {n: p.grad for n, p in model.named_parameters()}
    capture = Capture.of(model, update, form="gradient", setting=Setting(**SETTING))
    sp.capture.save(capture, "searched.safetensors")
    save_file({"inputs": batch.inputs, "labels": batch.labels}, "own.safetensors")
    public = sp.data.load("photos", pixels=8).take(range(8, 24))
    numpy.savez("public.npz", images=public.inputs.numpy(), labels=public.labels.numpy())
    command = ["audit", "--model", "own_network:searched", "--steps", "700"]
    command += ["--capture", "searched.safetensors", "--public", "npz:public.npz"]
    for out, more in {"blind": [], "seen": ["--truth", "own.safetensors"]}.items():
        done = CliRunner().invoke(app, [*command, *more, "--out", out])
        assert done.exit_code == 0, done.output
    (blind,), (seen,) = load_audit("blind").records, load_audit("seen").records
    assert blind.race.trials
    assert not blind.race.made_up
    assert blind.race == seen.race
    assert torch.equal(load_audit("blind").guess(blind), load_audit("seen").guess(seen))
    assert seen.identification[0].gallery != "synthetic"


def test_a_model_and_a_data_set_need_no_spec(place):
    command = ["audit", "--model", "mlp", "-o", "hidden=[16]", "--data", "photos", "--people", "2"]
    done = CliRunner().invoke(app, [*command, "--out", "out", "--effort", "quick", "--steps", "50"])
    assert done.exit_code == 0, done.output
    records = load_audit("out").records
    assert [record.attack.name for record in records] == ["auto", "auto"]
    assert all(record.certificate["unique"] for record in records)
    assert "2 of 2 people were identified" in done.output


def test_defenses_are_compared_with_none_without_a_spec(place):
    command = ["audit", "--model", "own_network.py:sized:width=16", "--data", "digits"]
    command += ["--people", "1", "--steps", "5", "--quiet", "--out", "out"]
    noise = "ClipEach:max_norm=1+Mean+AddGaussian:std=0.01"
    done = CliRunner().invoke(app, [*command, "--defense", "Prune:ratio=0.9", "--defense", noise])
    assert done.exit_code == 0, done.output
    records = load_audit("out").records
    assert {record.model for record in records} == {"own_network:sized(width=16)"}
    behind = [[link.name for link in record.defense] for record in records]
    assert behind == [[], ["Prune"], ["ClipEach", "Mean", "AddGaussian"]]
    assert "DP-SGD C=1 noise 0.01" in done.output


# Of the noise that a control is made of, few examples can be told apart.
@pytest.mark.filterwarnings("ignore::seepage.attacks.feature_recovery.NotToldApartWarning")
def test_an_audit_of_one_model_is_not_resumed_as_that_of_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--data", "photos", "--people", "1", "--steps", "5", "--out", "out"]
    command = ["audit", "--model", "mlp", "-o", "hidden=[16]", *options]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--resume"]).exit_code == 0
    assert CliRunner().invoke(app, ["audit", "--out", "out", "--resume"]).exit_code == 0
    other = ["audit", "--model", "mlp", "-o", "hidden=[32]", *options, "--resume"]
    with pytest.raises(InvalidValue, match="'out' holds an audit of another --model"):
        CliRunner().invoke(app, other, catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "mlp"], "expected --model with --data, or --model with --capture"),
        (["--data", "photos"], "--data needs --model"),
        (["--effort", "quick"], "--effort needs --model, which is missing"),
        (["--model", "mlp", "--capture", "x.safetensors", "--people", "3"], "needs --data"),
        (["x.toml", "--model", "mlp", "--data", "photos"], "a spec or --model, got both"),
        # Who wrote no spec is not told a line of it.
        (["--model", "mlp", "--data", "nothing"], "unknown data set 'nothing'"),
        (["--model", "no.module:here", "--data", "photos"], "no module 'no'"),
        (["--defense", "Sign"], "--defense needs --model, which is missing"),
        (["--model", "mlp", "--data", "photos", "--defense", "prune:ratio=1"], "mean 'Prune'"),
        (["--model", "mlp", "--data", "photos", "--defense", "Prune:rate=1"], "mean 'ratio'"),
        (["--model", "mlp", "--data", "photos", "--defense", "Prune:ratio=a"], "ratio as float"),
    ],
)
def test_options_that_need_others_say_which(place, arguments, said):
    refused = CliRunner().invoke(app, ["audit", *arguments, "--out", "none"])
    assert isinstance(refused.exception, SeepageError)
    assert said in str(refused.exception)
    assert "line" not in str(refused.exception)
    assert not (place / "none").exists()


def test_a_broken_off_audit_of_a_capture_is_resumed_from_its_directory(place):
    first = audited("--capture", "gradient.safetensors", "--out", "out")
    again = CliRunner().invoke(app, ["audit", "--out", "out", "--resume"])
    assert first.exit_code == again.exit_code == 0, again.output
    assert "1 case is done, 0 to run" in again.output
    spec = load_audit("out").spec
    (place / "shown.toml").write_text(spec, encoding="utf-8")
    rerun = CliRunner().invoke(app, ["audit", "shown.toml", "--out", "rerun"])
    assert rerun.exit_code == 0, rerun.output


def test_a_form_that_contradicts_the_numbers_is_refused_unless_insisted_on(place):
    refused = audited("--capture", "wrong.safetensors", "--out", "out")
    assert isinstance(refused.exception, InvalidValue)
    assert "looks like a gradient" in str(refused.exception)
    assert "--form gradient" in str(refused.exception)
    right = audited(
        "--capture", "wrong.safetensors", "--form", "gradient", "--truth", "truth.safetensors"
    )
    assert right.exit_code == 0, right.output
    assert load_audit("seepage-audit").records[0].scores["psnr"][0] > 60


def test_known_labels_are_used_and_nonsense_is_refused(place):
    labels = str(sp.data.bundled("photos", size=1).labels.item())
    done = audited("--capture", "gradient.safetensors", "--labels", labels, "--out", "out")
    assert done.exit_code == 0, done.output
    assert {record.threat for record in load_audit("out").records} == {
        describe_threat(sp.Threat(knows_labels=True))
    }
    for arguments, said in {
        ("--capture", "gradient.safetensors", "--labels", "a"): "--labels as class numbers",
        ("--capture", "gradient.safetensors", "--labels", "99"): "expected labels in 0..",
        ("--capture", "gradient.safetensors", "--shape", "3x9x9"): "does not accept inputs",
        ("--truth", "truth.safetensors"): "needs --capture",
        ("--capture", "truth.safetensors"): "seepage.capture",
        ("--capture", "nothing.safetensors"): "no capture at",
        ("some.toml", "--capture", "gradient.safetensors"): "a spec or --capture",
    }.items():
        refused = audited(*arguments, "--out", "none")
        assert refused.exit_code != 0
        assert said in str(refused.exception), arguments
    assert not (place / "none").exists()


def test_steps_of_a_spec_stand_in_the_spec(place):
    refused = CliRunner().invoke(app, ["audit", "some.toml", "--steps", "5"])
    assert isinstance(refused.exception, InvalidValue)
    assert "--steps needs --model, which is missing" in str(refused.exception)


def test_a_truth_that_is_no_truth_is_refused(place):
    save_file({"inputs": torch.rand(1, 3, 8, 8)}, "half.safetensors")
    done = audited("--capture", "gradient.safetensors", "--truth", "half.safetensors")
    assert isinstance(done.exception, UnreadableFile)
    assert "inputs and labels" in str(done.exception)


def test_a_truth_of_another_number_of_people_is_refused(place):
    two = {"inputs": torch.rand(2, 3, 8, 8), "labels": torch.tensor([0, 1])}
    save_file(two, "two.safetensors")
    done = audited("--capture", "gradient.safetensors", "--truth", "two.safetensors")
    assert isinstance(done.exception, InvalidValue)
    assert "expected the truth of 1 people, as the capture says, got that of 2" in str(
        done.exception
    )
