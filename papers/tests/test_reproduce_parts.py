"""The parts of a reproduction, each against something independent."""

import json
import math
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

import seepage as sp
from seepage.attacks.feature_recovery import ExactFeatures
from seepage.audit import Outcome, Record
from seepage.audit import _spec_entries as entries
from seepage.core.errors import Diverged, InvalidValue, UnknownName, summarise_error
from seepage.domains import CIFAR10
from seepage.report import mean_interval
from seepage.utility import evaluate
from seepage_papers.chosen import RULES, chosen
from seepage_papers.cost import Cost, cost
from seepage_papers.features import feature_errors, outside
from seepage_papers.lines import line
from seepage_papers.measures import MEASURES, STATISTICS
from seepage_papers.place import Place
from seepage_papers.prepare import prepared
from seepage_papers.reading import load_table, parse_table
from seepage_papers.sources import Sample, attacked
from seepage_papers.substitute import filled, laid_over
from seepage_papers.table import Cell, Published
from seepage_papers.toml import spec_text
from seepage_papers.trained import Schooling, trained


def test_a_name_that_has_no_value_is_refused():
    with pytest.raises(UnknownName, match="unknown value 'step'; did you mean 'steps'"):
        filled({"steps": "$step"}, {"steps": 3})


def test_tables_are_laid_over_each_other_at_every_depth():
    base = {"models": {"name": "convnet", "schooling": {"epochs": 3, "lr": 0.1}}}
    over = laid_over(base, {"models": {"schooling": {"lr": 0.2}}})
    assert over == {"models": {"name": "convnet", "schooling": {"epochs": 3, "lr": 0.2}}}
    assert base["models"]["schooling"]["lr"] == 0.1


def test_a_spec_is_read_as_it_was_written():
    scenario = {
        "data": {"name": "photos", "people": [3, 1], "mean": 0.5},
        "models": {"name": "mlp", "hidden": [4], "weights": 'a "b" \\ c.safetensors'},
        "attacks": [{"name": "hybrid", "steps": [1, 2, 3], "step_size": 1e-8, "adaptive": True}],
        "defenses": [[], [{"name": "Prune", "ratio": 0.9}]],
    }
    text = spec_text(title="ä", seeds=[0, 1], metrics=["psnr"], scenarios=[scenario, scenario])
    assert tomllib.loads(text) == {
        "title": "ä",
        "seeds": [0, 1],
        "metrics": ["psnr"],
        "controls": False,
        "scenario": [scenario, scenario],
    }


@pytest.fixture(scope="module")
def outcome():
    """Two photos and bad guesses at them."""
    truth = sp.data.bundled("photos", size=2).inputs
    noise = 0.1 * sp.rng(0).normal(truth.shape)
    guess = (truth + noise).clamp(0, 1)
    record = Record("photos", (0, 1), "", "", "", "", "", 0, scores={"psnr": (7.0, None)})
    return Outcome(record, truth, guess)


def in_numpy(outcome):
    return outcome.truth.double().numpy(), outcome.guess.double().numpy()


def test_psnr_of_normalised_images_is_that_of_a_loop(outcome):
    values = MEASURES["psnr_normalised_003"].values(outcome, CIFAR10)
    std = np.asarray(CIFAR10.std)[:, None, None]
    expected = [
        -10 * math.log10(np.mean(((g - t) / std) ** 2))
        for t, g in zip(*in_numpy(outcome), strict=True)
    ]
    assert values == pytest.approx(expected, abs=1e-4)


def test_summed_l1_and_peak_255_are_those_of_a_loop(outcome):
    pairs = list(zip(*in_numpy(outcome), strict=True))
    summed = MEASURES["l1_sum_002"].values(outcome, CIFAR10)
    assert summed == pytest.approx([np.abs(g - t).sum() for t, g in pairs], rel=1e-6)
    high = MEASURES["psnr_peak255_004"].values(outcome, CIFAR10)
    expected = [10 * math.log10(255**2 / np.mean((g - t) ** 2)) for t, g in pairs]
    assert high == pytest.approx(expected, abs=1e-4)


def test_a_metric_of_seepage_is_read_from_the_record_person_by_person(outcome):
    known, undefined = MEASURES["psnr"].values(outcome, CIFAR10)
    assert known == 7.0
    assert math.isnan(undefined)


def test_gradattacks_lpips_takes_the_best_original_for_each_guess(outcome):
    twice = Outcome(outcome.record, outcome.truth, outcome.truth[[0, 0]])
    try:
        values = MEASURES["lpips_gradattack"].values(twice, CIFAR10)
    except sp.SeepageError as error:
        pytest.skip(str(error))
    assert values == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_case_that_failed_has_no_values(outcome):
    failed = Outcome(outcome.record, outcome.truth, None)
    assert MEASURES["psnr_normalised_003"].values(failed, CIFAR10) == []


@pytest.mark.parametrize(
    ("statistic", "higher", "expected"),
    [
        ("mean", True, 3.5),
        ("median", True, 3.5),
        ("best", True, 6.0),
        ("best", False, 1.0),
        ("five best", True, 4.0),
        ("five best", False, 3.0),
        ("deviation", True, float(np.std([1, 2, 3, 4, 5, 6]))),
    ],
)
def test_statistics_of_people(statistic, higher, expected):
    values = [float(v) for v in range(1, 7)]
    assert STATISTICS[statistic](values, higher) == pytest.approx(expected)


def test_the_interval_of_a_mean_is_that_of_scipy():
    values = np.random.default_rng(1).normal(20, 3, size=16)
    ours = mean_interval(values.tolist())
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours.middle == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.2)


@pytest.fixture
def scenario(data_root):
    return {
        "data": {"name": "mnist", "people": 2, "start": 0},
        "models": {
            "name": "mlp",
            "hidden": [8],
            "schooling": {"epochs": 4, "examples": 200, "batch_size": 20, "augmented": False},
        },
        "attacks": {"name": "analytic_fc"},
    }


def test_a_network_is_trained_once_and_learns(scenario, tmp_path):
    first = trained(scenario, Place(folder=tmp_path))
    written = first.path.stat().st_mtime_ns
    assert trained(scenario, Place(folder=tmp_path)) == first
    assert first.path.stat().st_mtime_ns == written
    assert first.accuracy > 0.3
    other = laid_over(scenario, {"models": {"schooling": {"lr": 0.2}}})
    assert trained(other, Place(folder=tmp_path)).path != first.path


def test_a_victim_is_trained_for_epochs_or_for_steps(scenario):
    digits = sp.data.load("mnist").batch(200)
    assert Schooling(steps=7, batch_size=50).plan(digits).count_steps(200) == 7
    assert Schooling(epochs=2, batch_size=50).plan(digits).count_steps(200) == 8
    with pytest.raises(InvalidValue, match="either steps or epochs"):
        Schooling(epochs=2, steps=7).plan(digits)


def test_one_cycle_begins_low_and_ends_low(scenario):
    plain = Schooling(**{**scenario["models"]["schooling"], "one_cycle": True})
    schedule = plain.plan(sp.data.load("mnist").batch(200)).schedule
    begin, peak, end = (schedule(step, 100) for step in (0, 30, 99))
    assert begin < 0.1 < 0.9 < peak <= 1
    assert end < 0.1


def test_a_table_tells_how_good_the_network_it_attacks_is(scenario, tmp_path):
    place, block = Place(folder=tmp_path), Published(by="victim", measure="accuracy")
    told = attacked(Cell(0, 0, ("", ""), scenario), block, place)
    assert told.values == (100 * trained(scenario, place).accuracy,)
    fresh = {**scenario, "models": {"name": "mlp"}}
    with pytest.raises(InvalidValue, match="expected a network with schooling in the table"):
        attacked(Cell(0, 0, ("", ""), fresh), block, place)


def test_what_is_trained_behind_a_defense_is_another_network(scenario, tmp_path):
    plain = trained(scenario, Place(folder=tmp_path))
    noisy = trained(scenario, Place(folder=tmp_path), defense=sp.AddGaussian(1.0))
    assert noisy.path != plain.path
    assert noisy.accuracy < plain.accuracy


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_training")
def test_the_random_neurons_of_a_wide_head_stay_as_they_were_drawn(data_root, tmp_path):
    model = {"name": "wide_head_resnet18", "width": 2, "neurons": 32, "trained": 8}
    schooling = {"epochs": 1, "examples": 16, "held_out": 4, "batch_size": 8}
    data = {"name": "mnist", "pixels": 8}
    place = Place(folder=tmp_path)
    before = entries.read_model(model, entries.read_dataset(data)).parameters
    after = load_file(
        trained({"data": data, "models": {**model, "schooling": schooling}}, place).path
    )
    for name, rest in (
        ("fc.hidden.weight", (slice(8, None),)),
        ("fc.head.weight", (..., slice(8, None))),
    ):
        assert torch.equal(after[name][rest], before[name][rest])
        assert not torch.equal(after[name], before[name])


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_training")
def test_the_accuracy_that_is_kept_is_that_of_the_network_that_is_kept(data_root, tmp_path):
    model = {"name": "wide_head_resnet18", "width": 2, "neurons": 64, "trained": 16}
    schooling = {"epochs": 2, "examples": 256, "held_out": 64, "batch_size": 16}
    data = {"name": "mnist", "pixels": 8}
    wanted = {"data": data, "models": {**model, "schooling": schooling}}
    kept = trained(wanted, Place(folder=tmp_path))
    task = entries.read_model({**model, "weights": str(kept.path)}, entries.read_dataset(data))
    unseen = entries.read_dataset({**data, "split": "test"})
    quality = evaluate(task, unseen.batch(64, start=len(unseen) - 64))
    assert quality.accuracy == kept.accuracy


def test_a_victim_that_diverges_is_not_kept(scenario, tmp_path):
    wild = laid_over(scenario, {"models": {"schooling": {"lr": 1e30}}})
    with pytest.raises(Diverged, match="use a learning rate below lr=1e"):
        trained(wild, Place(folder=tmp_path))
    assert not list(tmp_path.glob("*.safetensors"))
    assert not list(tmp_path.glob("*.json"))


def test_people_are_chosen_by_the_norm_of_their_gradient(scenario, tmp_path):
    rule = {"choose": "largest_gradient", "count": 3, "among": 12}
    wanted = laid_over(scenario, {"data": {"people": rule}})
    ready = prepared(wanted, Place(folder=tmp_path))
    dataset = entries.read_dataset({"name": "mnist"})
    task = entries.read_model(ready["models"], dataset)
    norms = []
    for i in range(12):
        batch = dataset.batch(1, start=i)
        logits = task.model(task.domain.normalise(batch.inputs))
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        gradients = torch.autograd.grad(loss, list(task.model.parameters()))
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
    assert ready["data"]["people"] == np.argsort(norms)[::-1][:3].tolist()
    assert "schooling" not in ready["models"]


def test_distinct_labels_are_the_first_of_each_class():
    photos = sp.data.load("photos")
    found = chosen({"choose": "distinct_labels", "count": 4, "among": 24}, photos, None)
    labels = photos.labels[found].tolist()
    assert len(set(labels)) == 4
    assert all(
        label not in photos.labels[:number] for number, label in zip(found, labels, strict=True)
    )


def test_too_few_people_are_refused(scenario, tmp_path):
    rule = {"choose": "distinct_labels", "count": 11, "among": 50}
    with pytest.raises(InvalidValue, match="expected 11 people by distinct_labels, found"):
        prepared(laid_over(scenario, {"data": {"people": rule}}), Place(folder=tmp_path))
    with pytest.raises(UnknownName, match="unknown rule 'best'"):
        chosen({**rule, "choose": "best"}, sp.data.load("photos"), None)
    assert set(RULES) == {"smallest_gradient", "largest_gradient", "distinct_labels"}


COUNTED = """
title = "T"
paper = "geiping2020inverting"
place = "Table 0"
claim = "C."
[scenario]
data = { name = "photos", people = 4, batch_size = 2, start = 0 }
models = { name = "mlp", schooling = { epochs = 5 } }
attacks = [{ name = "dlg", iterations = 3 }, { name = "hybrid", steps = [1, 2, 3] }]
[[rows]]
label = "a"
[[rows]]
label = "b"
models = { schooling = { epochs = 7 } }
[[published]]
why = "Not printed."
[scale.smoke]
seeds = [0, 1]
"""


def test_costs_are_counted():
    # 2 rows, 2 seeds, 2 batches, 2 attacks; 4 people at 60 and 6 steps; either training once.
    counted = cost(parse_table("999-table0", COUNTED), "smoke")
    assert counted == Cost(cases=16, steps=2 * 2 * 4 * 66, epochs=12)
    assert json.dumps(str(counted)) == '"16 cases, 1.1k steps, 12 epochs"'


def test_a_training_counted_in_steps_costs_the_epochs_it_begins():
    by_steps = COUNTED.replace("epochs = 7", "steps = 25, batch_size = 4, examples = 40")
    assert cost(parse_table("999-table0", by_steps), "smoke").epochs == 5 + 3


def test_what_is_left_of_features_is_what_a_projection_leaves():
    drawn = np.random.default_rng(3)
    features, span = drawn.normal(size=(4, 9)), np.linalg.qr(drawn.normal(size=(9, 3)))[0]
    expected = []
    for feature in features:
        unit = feature / np.linalg.norm(feature)
        fitted, *_ = np.linalg.lstsq(span, unit, rcond=None)
        expected.append(np.linalg.norm(unit - span @ fitted))
    found = outside(torch.from_numpy(features), torch.from_numpy(span))
    assert found.tolist() == pytest.approx(expected)


def test_features_come_back_through_a_wide_head(data_root, tmp_path):
    scenario = {
        "data": {"name": "mnist", "pixels": 8, "people": 2, "batch_size": 2},
        "models": {"name": "wide_head_resnet18", "width": 2, "neurons": 512, "trained": 16},
        "threats": {"knows_labels": True},
        "attacks": {"name": "exact_features"},
    }
    errors = feature_errors(scenario, Place(folder=tmp_path), seeds=[0])
    assert len(errors.values) == 2
    assert max(errors.values) < 0.01
    assert errors.missed == ()


def test_a_recovery_that_is_refused_is_named_and_ends_nothing(data_root, tmp_path):
    # Four random neurons are too few for moments of sixteen numbers; the table goes on.
    scenario = {
        "data": {"name": "mnist", "pixels": 8, "people": 2, "batch_size": 1},
        "models": {"name": "wide_head_resnet18", "width": 2, "neurons": 20, "trained": 8},
        "threats": {"knows_labels": True},
        "attacks": {"name": "tensor_features"},
    }
    errors = feature_errors(scenario, Place(folder=tmp_path), seeds=[0])
    assert errors.values == ()
    assert len(errors.missed) == 2
    table = load_table("001-table2")
    block = table.published[0]
    made = line(table, table.cells("smoke")[0], block, Sample(missed=errors.missed))
    assert made.seepage is None
    assert made.why.startswith("Not recovered for 2 batches: 12 random neurons are too few")


@pytest.mark.parametrize("error", [RuntimeError(), ArithmeticError("a.\nb")], ids=repr)
def test_what_others_raise_is_named_whatever_it_says(error, data_root, tmp_path, monkeypatch):
    errors = feature_errors_after(error, tmp_path, monkeypatch)
    assert errors.missed == (summarise_error(error),)
    table = load_table("001-table2")
    sample = Sample(missed=errors.missed)
    why = line(table, table.cells("smoke")[0], table.published[0], sample).why
    assert why.endswith(f"Not recovered for 1 batch: {summarise_error(error).rstrip('.')}.")


def test_a_card_without_memory_is_no_failed_recovery(data_root, tmp_path, monkeypatch):
    with pytest.raises(torch.cuda.OutOfMemoryError):
        feature_errors_after(torch.cuda.OutOfMemoryError("full"), tmp_path, monkeypatch)


def feature_errors_after(error, tmp_path, monkeypatch):
    """What becomes of a recovery that raises this, which no CPU does on request."""

    def recover(*_, **__):
        raise error

    monkeypatch.setattr(ExactFeatures, "recover", recover)
    scenario = {
        "data": {"name": "mnist", "pixels": 8, "people": 1, "batch_size": 1},
        "models": {"name": "wide_head_resnet18", "width": 2, "neurons": 20, "trained": 8},
        "threats": {"knows_labels": True},
        "attacks": {"name": "exact_features"},
    }
    return feature_errors(scenario, Place(folder=tmp_path), seeds=[0])
