"""Specs become audits."""

import copy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.audit import QUICKSTART, environment, load_spec, select_targets
from seepage.audit._run_case import run_case
from seepage.core._construct import Component
from seepage.core.errors import DataNotFound, InvalidValue, MissingExtra, SeepageError, UnknownName
from seepage.scoring import METRICS

SPECS = Path(__file__).resolve().parents[2] / "specs"

EVERYTHING = """controls = false
title = "Everything a spec can say"
seeds = [3, 4]
metrics = ["ssim", "psnr", "l1"]

[[scenario]]
data = { name = "photos", people = 4, batch_size = 2, start = 1, pixels = 16 }
models = [{ name = "mlp", hidden = [8], seed = 5 }, { name = "cnn2-v2" }]
locals = [{ name = "Gradient", reduction = "sum" }, { name = "FedAvg", lr = 0.1, steps = 2 }]
threats = [{ knows_labels = true }, { knows_labels = true, knows_defense = false }]
attacks = { name = "inverting_gradients", steps = 5, restarts = 1 }
defenses = [
  [],
  { name = "Prune", ratio = 0.9, scope = "update" },
  [{ name = "Clip", max_norm = 1.0 }, { name = "AddGaussian", std = 0.1 }],
]
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "spec.toml"
        path.write_text(text)
        return path

    return write


def test_a_spec_maps_one_to_one_to_constructors(written):
    spec = load_spec(written(EVERYTHING))
    [part] = spec.parts
    audit = part.audit
    assert spec.title == "Everything a spec can say"
    assert [task.name for task in audit.tasks] == [
        "mlp(hidden=(8,), seed=5)",
        "cnn(variant='cnn2-v2')",
    ]
    assert all(task.domain == sp.data.load("photos", pixels=16).domain for task in audit.tasks)
    assert list(audit.locals) == [sp.Gradient(reduction="sum"), sp.FedAvg(lr=0.1, steps=2)]
    assert list(audit.defenses) == [
        sp.chain(),
        sp.Prune(0.9, scope="update"),
        sp.chain(sp.Clip(1.0), sp.AddGaussian(0.1)),
    ]
    assert list(audit.threats) == [
        sp.Threat(knows_labels=True),
        sp.Threat(knows_labels=True, knows_defense=False),
    ]
    made = sp.attacks.inverting_gradients(steps=5, restarts=1)
    assert audit.attacks == {Component("inverting_gradients", {"steps": 5, "restarts": 1}): made}
    assert audit.seeds == (3, 4)
    assert audit.metrics == tuple(METRICS[name] for name in ("psnr", "ssim", "l1"))
    assert [who.people for who in part.batches] == [(1, 2), (3, 4)]
    assert len(audit.cases(part.batches)) == 2 * 2 * 3 * 2 * 1 * 2 * 2


def test_an_attack_of_a_spec_may_adapt_to_the_defense(written):
    text = EVERYTHING.replace("restarts = 1 }", "restarts = 1, adaptive = true }")
    [part] = load_spec(written(text)).parts
    made = sp.attacks.adaptive(sp.attacks.inverting_gradients(steps=5, restarts=1))
    options = {"steps": 5, "restarts": 1, "adaptive": True}
    name = Component("inverting_gradients", options)
    assert part.audit.attacks == {name: made}
    [part] = load_spec(written(text.replace("adaptive", "unmix"))).parts
    assert list(part.audit.attacks.values()) == [
        sp.attacks.Unmixed(sp.attacks.inverting_gradients(steps=5, restarts=1))
    ]
    with pytest.raises(InvalidValue, match="expected adaptive as true or false, got 'yes'"):
        load_spec(written(text.replace("adaptive = true", 'adaptive = "yes"')))


EVERY_DEFENSE = """controls = false
[[scenario]]
data = { name = "photos", people = 4, batch_size = 4, start = 0, pixels = 16 }
models = { name = "cnn2-v2" }
threats = [{ name = "strongest" }, { name = "realistic" }, { knows_mixing = true }]
attacks = { name = "inverting_gradients", steps = 2, restarts = 1 }
defenses = [
  { name = "dp_sgd", max_norm = 1.0, noise_multiplier = 2.0, batch_size = 4 },
  [{ name = "InstaHide", k = 4 }, { name = "Prune", ratio = 0.9 }],
  [{ name = "MixUp", k = 2, bound = 0.7 }, { name = "SecureAggregation", clients = 2 }],
  [{ name = "Oasis" }, { name = "Precode", code = 8 }, { name = "Soteria", ratio = 0.5 }],
  { name = "TopK", k = 100 },
]
"""


def test_defenses_of_every_kind_are_named_chained_and_run_like_the_others(written):
    [part] = load_spec(written(EVERY_DEFENSE)).parts
    audit = part.audit
    assert list(audit.threats) == [
        sp.Threat.strongest(),
        sp.Threat.realistic(),
        sp.Threat(knows_mixing=True),
    ]
    assert list(audit.defenses) == [
        sp.chain(sp.ClipEach(1.0), sp.Mean(over=4), sp.AddGaussian(0.5)),
        sp.chain(sp.InstaHide(4), sp.Prune(0.9)),
        sp.chain(sp.MixUp(2, bound=0.7), sp.SecureAggregation(2)),
        sp.chain(sp.Oasis(), sp.Precode(8), sp.Soteria(0.5)),
        sp.TopK(100),
    ]
    realistic = replace(audit, threats=[sp.Threat.realistic()])
    outcomes = list(realistic.run(part.batches))
    assert [outcome.record.error for outcome in outcomes] == [None] * 5
    kept = outcomes[1].record
    assert [link.name for link in kept.defense] == ["InstaHide", "Prune"]
    assert kept.threat.arguments["knows_mixing"] is False


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('{ name = "MixUp", k = 1 }', "defenses: expected k >= 2 inputs in a mixture, got 1"),
        ('{ name = "MixUp", ratio = 1 }', "unknown option 'ratio' of MixUp"),
        ('{ name = "Mixup", k = 4 }', "did you mean 'MixUp'"),
        ('[{ name = "TopK", k = 3 }, { name = "MixUp", k = 4 }]', "cannot come after TopK"),
    ],
)
def test_a_defense_that_cannot_be_is_refused_where_it_stands(written, wrong, said):
    text = EVERY_DEFENSE.replace('{ name = "TopK", k = 100 }', wrong)
    with pytest.raises(SeepageError, match=said):
        load_spec(written(text))


def test_a_preset_of_threats_has_no_options(written):
    text = EVERY_DEFENSE.replace('"realistic" }', '"realistic", knows_labels = false }')
    with pytest.raises(UnknownName, match="unknown option 'knows_labels' of realistic"):
        load_spec(written(text))


def test_what_a_spec_leaves_out_has_a_default(written):
    text = '[[scenario]]\ndata = { name = "photos" }\nmodels = { name = "mlp" }\n'
    spec = load_spec(written(text + 'attacks = { name = "analytic_fc" }'))
    [part] = spec.parts
    case, *controls = part.audit.cases(part.batches)
    assert [control.control for control in controls] == ["canary"] * 3 + ["noise"]
    assert spec.title == "spec"
    assert (case.client, case.threat) == (sp.Client(sp.Gradient()), sp.Threat())
    [drawn] = select_targets(sp.data.load("photos"), people=1, batch_size=1)
    assert (case.seed, case.target.people) == (0, drawn.people)
    assert part.audit.metrics is None


def test_models_are_built_for_the_data_they_are_attacked_on(written):
    text = '[[scenario]]\ndata = [{ name = "photos" }, { name = "digits" }]\n'
    text += 'models = { name = "mlp" }\nattacks = { name = "analytic_fc" }'
    photos, digits = load_spec(written(text)).parts
    assert photos.audit.tasks[0].domain.shape == (3, 32, 32)
    assert digits.audit.tasks[0].domain.shape == (1, 28, 28)


def test_metrics_that_do_not_fit_the_inputs_are_left_out(written):
    head = 'metrics = ["ssim", "psnr"]\n[[scenario]]\n'
    text = 'data = { name = "photos", pixels = 4 }\nmodels = { name = "mlp" }\n'
    spec = load_spec(written(head + text + 'attacks = { name = "analytic_fc" }'))
    assert spec.parts[0].audit.metrics == (METRICS["psnr"],)


def test_a_metric_that_cannot_run_here_is_an_error_that_says_where(written, monkeypatch):
    monkeypatch.setenv("SEEPAGE_LPIPS", "nowhere.safetensors")
    text = '\n[[scenario]]\ndata = { name = "photos" }\nmodels = { name = "mlp" }\n'
    path = written('metrics = ["lpips"]' + text + 'attacks = { name = "analytic_fc" }')
    with pytest.raises(MissingExtra, match=r"^spec.toml, line 2: scenario 1: lpips needs the file"):
        load_spec(path)


def test_the_quickstart_loads_and_attacks_photos_and_digits_behind_four_defenses():
    spec = load_spec()
    assert spec.title == "Quickstart"
    assert spec.source.text == QUICKSTART.read_text(encoding="utf-8")
    assert {p.batches[0].data for p in spec.parts} == {"photos", "digits"}
    cases = [case for p in spec.parts for case in p.audit.cases(p.batches)]
    assert len([case for case in cases if not case.control]) == 2 * 4 * 4
    assert {case.attack_name.name for case in cases} == {"auto"}
    assert len({case.client.defense for case in cases}) == 4


def test_a_network_of_ones_own_is_audited_with_the_weights_of_a_file(
    written, tmp_path, monkeypatch
):
    from safetensors.torch import save_file

    (tmp_path / "own_network_for_spec.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))\n"
    )
    save_file(
        {"1.weight": torch.ones(10, 3072), "1.bias": torch.zeros(10)}, tmp_path / "w.safetensors"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    model = '{ name = "own_network_for_spec:build", weights = "w.safetensors" }'
    text = f'[[scenario]]\ndata = {{ name = "photos" }}\nmodels = {model}\n'
    [part] = load_spec(written(text + 'attacks = { name = "analytic_fc" }')).parts
    [task] = part.audit.tasks
    assert torch.equal(task.parameters["1.weight"], torch.ones(10, 3072))
    assert task.name == "own_network_for_spec:build(weights='w.safetensors')"


def test_every_error_of_a_spec_is_of_ours_and_says_file_scenario_and_entry(written):
    wrong = EVERYTHING.replace('"Prune", ratio', '"Prune", ratoi')
    with pytest.raises(
        UnknownName,
        match=r"^spec.toml, line 14: scenario 1: defenses: unknown option 'ratoi' of Prune",
    ):
        load_spec(written(wrong))


def test_labels_beyond_the_classes_are_found_in_every_batch(written):
    text = '[[scenario]]\ndata = { name = "photos", people = 4, start = 0 }\n'
    text += 'models = { name = "mlp", classes = 3 }\nattacks = { name = "analytic_fc" }'
    assert sp.data.load("photos").labels[:3].max() < 3
    with pytest.raises(InvalidValue, match=r"expected labels in 0..2"):
        load_spec(written(text))


def test_a_spec_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(DataNotFound, match="No such file"):
        load_spec(tmp_path / "none.toml")


def test_the_environment_names_what_a_rerun_needs():
    here = environment("cpu")
    assert here["packages"]["torch"] == torch.__version__
    assert {"python", "platform", "device", "processor"} <= set(here)


def test_the_environment_is_told_from_a_source_tree_too(monkeypatch):
    monkeypatch.setattr(
        sys.modules[environment.__module__], "PACKAGES", ("no-such-package-at-all",)
    )
    assert environment("cpu")["packages"] == {"no-such-package-at-all": "not installed"}


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_spec_that_ships_loads(path, monkeypatch):
    monkeypatch.chdir(SPECS.parent)
    monkeypatch.syspath_prepend(str(SPECS.parent))
    assert load_spec(path).cases


def test_the_quickstart_stands_among_the_specs_too():
    assert (SPECS / "quickstart.toml").read_text() == QUICKSTART.read_text()


SHARED = """controls = false
metrics = ["psnr"]
[[scenario]]
data = { name = "photos", people = [7, 3] }
models = { name = "mlp", hidden = [8], double = true }
attacks = { name = "analytic_fc" }
[[scenario]]
data = { name = "photos", people = 1, start = 0 }
models = { name = "mlp", hidden = [8], double = true }
attacks = { name = "analytic_fc" }
[[scenario]]
data = { name = "photos", people = 1, start = 0, mean = 0.5 }
models = { name = "mlp", hidden = [8] }
attacks = { name = "analytic_fc" }
"""


def test_people_can_be_named_by_number(written):
    named, *_ = load_spec(written(SHARED)).parts
    assert [who.people for who in named.batches] == [(7,), (3,)]
    assert torch.equal(named.batches[0].truth, sp.data.load("photos").take([7]).inputs)


def test_a_spec_says_whether_people_are_drawn_or_taken_in_order(written):
    def people(how):
        text = SHARED.replace("people = [7, 3]", f"people = 3{how}")
        return [who.people[0] for who in load_spec(written(text)).parts[0].batches]

    assert people(", start = 0") == [0, 1, 2]
    assert people("") == people(", sample_seed = 0") != people(", sample_seed = 1")
    with pytest.raises(InvalidValue, match="nobody is drawn at random here, got sample_seed=1"):
        people(", start = 0, sample_seed = 1")


@pytest.mark.parametrize("people", ["[3, 3]", "[3, 99]", "[]"])
def test_people_who_are_nobody_or_stand_twice_are_refused(written, people):
    with pytest.raises(InvalidValue, match="line 4: scenario 1: data: "):
        load_spec(written(SHARED.replace("[7, 3]", people)))


def test_scenarios_share_data_and_networks(written):
    first, second, third = load_spec(written(SHARED)).parts
    assert first.audit.tasks[0] is second.audit.tasks[0]
    assert first.batches[0].everybody is second.batches[0].everybody
    assert third.audit.tasks[0] is not first.audit.tasks[0]


def test_double_precision_and_another_normalisation(written):
    first, _, third = load_spec(written(SHARED)).parts
    assert {p.dtype for p in first.audit.tasks[0].parameters.values()} == {torch.float64}
    assert third.audit.tasks[0].domain.mean == (0.5, 0.5, 0.5)
    assert third.audit.tasks[0].domain.std == (1.0, 1.0, 1.0)
    assert third.batches[0].data == "photos(mean=0.5)"
    with pytest.raises(InvalidValue, match="expected double as true or false, got 1"):
        load_spec(written(SHARED.replace("double = true", "double = 1")))


SMALL = """controls = false
[[scenario]]
data = { name = "photos", people = 1, pixels = 16 }
models = { name = "mlp", hidden = [8], loss = LOSS }
attacks = { name = "analytic_fc" }
"""


def test_a_spec_gives_a_model_another_loss(written):
    weights = [1.0] * 9 + [5.0]
    loss = f'{{ name = "CrossEntropyLoss", weight = {weights} }}'
    [part] = load_spec(written(SMALL.replace("LOSS", loss))).parts
    [task] = part.audit.tasks
    assert task.loss.weighted
    assert "CrossEntropyLoss" in task.name


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ('"MSELos"', "did you mean 'MSELoss'"),
        ('"MSELoss"', "as floats"),
        ('{ name = "BCEWithLogitsLoss", weigth = 2 }', "unknown option 'weigth'"),
        ("3", "expected a loss as a table such as"),
    ],
)
def test_a_loss_that_does_not_fit_is_said_in_one_sentence(loss, said, written):
    with pytest.raises(SeepageError, match=said):
        load_spec(written(SMALL.replace("LOSS", loss)))


def test_a_spec_normalises_every_channel_by_its_own_mean(written):
    text = SMALL.replace(", loss = LOSS", "").replace(
        "pixels = 16", "pixels = 16, mean = [0.5, 0.4, 0.3], std = [0.2, 0.25, 0.3]"
    )
    [part] = load_spec(written(text)).parts
    [task] = part.audit.tasks
    assert task.domain.mean == (0.5, 0.4, 0.3)
    assert task.domain.std == (0.2, 0.25, 0.3)
    with pytest.raises(SeepageError, match="expected 3 channel means"):
        load_spec(written(text.replace("[0.5, 0.4, 0.3]", "[0.5, 0.4]")))


CODER = """controls = false
[[scenario]]
data = { name = "digits", pixels = 8, labels = false, people = 2, batch_size = 2 }
models = { name = "mlp", hidden = [24], classes = 64, loss = "MSELoss" }
attacks = { name = "inverting_gradients", steps = 5 }
"""


def test_an_autoencoder_in_a_spec_has_the_gradient_of_its_training_loop(written):
    [case] = load_spec(written(CODER)).cases
    batch, task = case.target.batch, case.task
    shared = case.client(task, batch, rng=sp.rng(0))
    coder = copy.deepcopy(task.model.model)
    read = task.domain.normalise(batch.inputs)
    nn.functional.mse_loss(coder(read), read.flatten(1)).backward()
    for ours, theirs in zip(shared, coder.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad)
    assert run_case(case).record.error is None


def test_an_autoencoder_must_return_what_it_reads_and_needs_a_loss(written):
    with pytest.raises(sp.SeepageError, match=r"must return what it reads, shape \(1, 8, 8\)"):
        load_spec(written(CODER.replace("classes = 64", "classes = 10")))
    with pytest.raises(sp.SeepageError, match="the data have no labels; give the model a loss"):
        load_spec(written(CODER.replace(', loss = "MSELoss"', "")))


def test_weights_of_examples_are_a_column_of_the_targets(written, tmp_path, monkeypatch):
    weights = np.float32([[0, 1], [1, 3], [2, 2], [1, 1]])
    np.savez(tmp_path / "few.npz", inputs=np.eye(4, 6, dtype=np.float32), labels=weights)
    (tmp_path / "weighed.py").write_text(
        "from torch.nn.functional import cross_entropy\n"
        "def loss():\n"
        "    return lambda outputs, t: t[:, 1] * cross_entropy(\n"
        "        outputs, t[:, 0].long(), reduction='none')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = f"""controls = false
[[scenario]]
data = {{ name = "npz:{tmp_path}/few.npz", people = 2, batch_size = 2 }}
models = {{ name = "mlp", hidden = [8], classes = 3, loss = "weighed:loss" }}
threats = {{ knows_labels = true }}
attacks = {{ name = "inverting_gradients", steps = 5 }}
"""
    [case] = load_spec(written(text)).cases
    network, batch = copy.deepcopy(case.task.model), case.target.batch
    outputs = network(case.task.domain.normalise(batch.inputs))
    losses = nn.functional.cross_entropy(outputs, batch.labels[:, 0].long(), reduction="none")
    (batch.labels[:, 1] * losses).mean().backward()
    shared = case.client(case.task, batch, rng=sp.rng(0))
    for ours, theirs in zip(shared, network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad)
    assert run_case(case).record.error is None
