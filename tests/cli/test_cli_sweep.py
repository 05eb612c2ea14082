"""`seepage sweep`: one knob at several values, leakage beside accuracy."""

import copy
import csv
import io

import pytest
import torch
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.cli import app
from seepage.cli._sweep_command import DELTA, _find_noise, read_values
from seepage.core.errors import InvalidValue
from seepage.defenses._clip import gaussian_epsilon

FLAT = ("--model", "mlp", "--attack", "analytic_fc", "--people", "2", "--plain", "--quiet")


def sweep(*words):
    return CliRunner().invoke(app, ["sweep", *map(str, words)], catch_exceptions=False)


def rows(out):
    return list(csv.DictReader(io.StringIO((out / "sweep.csv").read_text(encoding="utf-8"))))


def test_more_noise_leaks_less_and_the_page_has_the_curve(tmp_path):
    out = tmp_path / "out"
    knob = ("--noise", "0,50", "--batch-size", 1)
    done = sweep(*knob, *FLAT, "--out", out)
    assert done.exit_code == 0, done.output
    bare, noisy = rows(out)
    assert (bare["identified"], noisy["identified"]) == ("2", "0")
    assert float(bare["median"]) > 60 > 20 > float(noisy["median"])
    assert float(bare["accuracy"]) > float(noisy["accuracy"])
    page = (out / "sweep.html").read_text(encoding="utf-8")
    assert page.count("<polyline") == 2
    assert "Leakage against noise" in page
    assert ">accuracy" in page
    assert "data:image" not in page


def train_plainly(task, learnt, *, batch_size=16, epochs=30):
    """A loop as anybody writes it."""
    model = copy.deepcopy(task.model).train().requires_grad_()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(learnt), generator=generator).split(batch_size):
            optimiser.zero_grad()
            outputs = model(task.domain.normalise(learnt.inputs[rows]))
            torch.nn.functional.cross_entropy(outputs, learnt.labels[rows]).backward()
            optimiser.step()
    return model.eval()


@pytest.mark.parametrize(
    ("model", "make"),
    [
        pytest.param(("lenet",), sp.zoo.lenet, marks=pytest.mark.slow),
        (("mlp", "-o", "hidden=[32]"), lambda domain: sp.zoo.mlp(hidden=(32,), domain=domain)),
    ],
    ids=["lenet", "mlp"],
)
def test_without_noise_a_network_learns_about_as_much_as_in_a_plain_loop(tmp_path, model, make):
    knob = ("--noise", "0", "--batch-size", 4, "--model", *model)
    rest = ("--attack", "analytic_fc", "--people", 4, "--plain", "--quiet", "--out", tmp_path / "a")
    assert sweep(*knob, *rest).exit_code == 0
    (swept,) = rows(tmp_path / "a")
    digits = sp.data.load("digits")
    order = sp.rng(0).fork("held out").permutation(len(digits))
    learnt, unseen = digits.take(order[:80]), digits.take(order[80:])
    plain = train_plainly(make(domain=digits.domain), learnt)
    right = plain(digits.domain.normalise(unseen.inputs)).argmax(1) == unseen.labels
    # Of 20 inputs one is 5 %; untrained networks have about 10 %.
    assert float(swept["accuracy"]) > float(right.float().mean()) - 0.25
    most = unseen.labels.bincount().max() / len(unseen)
    assert (swept["held_out"], float(swept["chance"])) == ("20", pytest.approx(float(most)))


@pytest.mark.slow
def test_accuracy_depends_on_the_attacked_batch_size_only_where_that_is_swept(tmp_path):
    for size in (1, 2):
        knob = ("--epsilon", "1e5", "--batch-size", size)
        assert sweep(*knob, *FLAT, "--out", tmp_path / str(size)).exit_code == 0
    (one,), (two,) = rows(tmp_path / "1"), rows(tmp_path / "2")
    assert one["accuracy"] == two["accuracy"]
    assert float(one["accuracy"]) > 0.5


def test_networks_that_learned_nothing_have_no_curve_but_a_sentence(tmp_path):
    out = tmp_path / "out"
    knob = ("--noise", "0,1", "--batch-size", 1, "--train-steps", 1)
    done = sweep(*knob, *FLAT, "--out", out)
    page = (out / "sweep.html").read_text(encoding="utf-8")
    assert done.output.count("No network learned anything") == 1
    assert "No network learned anything" in page
    assert page.count("<polyline") == 1
    assert ">accuracy" not in page
    assert all(float(row["luck"]) > 0.05 for row in rows(out))


def test_the_model_that_is_swept_and_trained_has_the_options_given(tmp_path):
    out = tmp_path / "out"
    knob = ("--noise", "0", "--batch-size", 1, "--train-steps", 1, "-o", "hidden=[5]")
    assert sweep(*knob, *FLAT, "--out", out).exit_code == 0
    assert {record.model for record in load_audit(out).records} == {"mlp(hidden=(5,))"}


def test_epsilon_is_that_of_one_update_and_is_shown_beside(tmp_path):
    out = tmp_path / "out"
    knob = ("--epsilon", "1,16", "--batch-size", 1, "--train-steps", 0)
    assert sweep(*knob, *FLAT, "--out", out).exit_code == 0
    assert [round(float(row["epsilon"]), 3) for row in rows(out)] == [1.0, 16.0]
    assert {row["accuracy"] for row in rows(out)} == {""}
    assert gaussian_epsilon(noise_multiplier=_find_noise(2.5), delta=DELTA) == pytest.approx(2.5)


def test_batch_sizes_are_swept_like_defenses(tmp_path):
    out = tmp_path / "out"
    assert sweep("--batch-sizes", "1,2", "--train-steps", 0, *FLAT, "--out", out).exit_code == 0
    assert [row["people"] for row in rows(out)] == ["2", "2"]
    sizes = {record.batch_size for record in load_audit(out).records}
    assert sizes == {1, 2}


def test_one_knob_at_a_time():
    with pytest.raises(InvalidValue, match="got none"):
        sweep()
    with pytest.raises(InvalidValue, match="got 2; sweep one at a time"):
        sweep("--noise", "0,1", "--prune", "0.5")


@pytest.mark.parametrize(
    ("knob", "written"),
    [("noise", "a"), ("noise", "1,1"), ("noise", "-1"), ("batch_size", "1.5"), ("epsilon", "0"),
     ("noise", "nan"), ("noise", "")],
)  # fmt: skip
def test_values_that_mean_nothing_are_one_sentence(knob, written):
    with pytest.raises(InvalidValue, match="as different numbers from"):
        read_values(knob, written)
