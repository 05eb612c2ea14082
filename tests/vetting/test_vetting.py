"""Vetting raises an alarm over what was planted, and over nothing else."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.domains import Signal
from seepage.exposure import Finding, VettingVerdict, concentration
from seepage.exposure._gradient_probes import find_own_places
from seepage.exposure._repeated_rows import _parallel_rows, find_sorting_units
from seepage.exposure._vet import _count_unlikely_classes
from seepage.probing._heads import classifier_head
from seepage.utility import Training, train
from seepage.zoo import MODELS

# Narrow where the width changes nothing but the time.
NARROW = {
    "convnet": {"width": 4},
    "resnet18": {"width": 4},
    "resnet50": {"width": 4},
    "resnet152": {"width": 4},
    "wide_head_resnet18": {"width": 2, "neurons": 512, "trained": 64},
}
# So deep that gradients example by example take their time; shallower ones of the kind stand in.
DEEP = {"resnet32", "resnet50", "resnet56", "resnet152"}
TRAINED = {
    "resnet20": "cifar10_resnet20-12fca82f.safetensors",
    "resnet56": "cifar10_resnet56-4bfd9763.safetensors",
}


@pytest.fixture(scope="module")
def own():
    return sp.data.bundled("photos", size=12)


def trained(name, data_root):
    path = data_root / "weights" / TRAINED[name]
    if not path.exists():
        pytest.skip("trained weights not found in the data folder")
    return sp.zoo.load_weights(MODELS[name](), path)


@pytest.mark.parametrize("name", MODELS)
def test_there_is_no_alarm_over_any_untrained_network_of_the_zoo(name):
    own = {"mnist_convnet": {"name": "digits"}, "gpt": {"name": "hamlet"}}
    data = sp.data.load(**own.get(name, {"name": "photos", "pixels": 16}))
    task = MODELS[name](domain=data.domain, **NARROW.get(name, {}))
    verdict = sp.vet(task, None if name in DEEP else data.batch(8))
    assert verdict.judgement == "clean", verdict.findings
    assert verdict.trusted


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_there_is_no_alarm_over_a_network_that_was_trained_well(name, data_root):
    task = trained(name, data_root)
    verdict = sp.vet(task, None if name in DEEP else sp.data.load("cifar10").batch(16))
    assert verdict.judgement == "clean", verdict.findings


@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn3-v3"])
def test_there_is_no_alarm_over_a_network_trained_here(name):
    digits = sp.data.load("digits")
    task = MODELS[name](domain=digits.domain)
    plan = Training(epochs=6, batch_size=16, lr=0.05)
    data = digits.batch(80)
    learnt = train(task, data, held_out=digits.batch(20, start=80), plan=plan, rng=sp.rng(0)).task
    assert sp.vet(learnt, digits.batch(20, start=80)).judgement == "clean"


PLANTED = {
    "robbing_the_fed": (sp.attacks.robbing_the_fed(), "malicious", "bins of biases"),
    "robbing, cumulative": (
        sp.attacks.robbing_the_fed(variant="cumulative"),
        "malicious",
        "bins of biases",
    ),
    "first_layer_fc": (sp.attacks.first_layer_fc(), "malicious", "pass-through layers"),
    "identity_convolutions": (
        sp.attacks.identity_convolutions(),
        "malicious",
        "pass-through layers",
    ),
    "class_fishing": (sp.attacks.class_fishing(target=4), "malicious", "silenced classes"),
    "input_to_logits": (sp.attacks.input_to_logits(), "suspicious", "held input"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_in_the_weights_alone(name):
    attack, judgement, check = PLANTED[name]
    verdict = sp.vet(attack.plant(sp.zoo.lenet(), rng=sp.rng(0)))
    assert verdict.judgement == judgement
    assert check in {found.check for found in verdict.alarms}
    assert not verdict.trusted


def test_fishing_is_also_found_by_whose_gradient_is_left(own):
    planted = sp.attacks.class_fishing(target=4).plant(sp.zoo.lenet(), rng=sp.rng(0))
    mine = sp.Batch(own.inputs[:10], own.labels[:10])
    assert int((mine.labels == 4).sum()) == 1
    assert "concentration" in {found.check for found in sp.vet(planted, mine).alarms}


@pytest.mark.slow
def test_flipped_labels_are_found_on_data_and_only_there(data_root):
    flipped = sp.attacks.label_flip().plant(trained("resnet20", data_root), rng=sp.rng(0))
    verdict = sp.vet(flipped, sp.data.load("cifar10").batch(24))
    assert [found.check for found in verdict.alarms] == ["flipped labels"]
    assert sp.vet(flipped).judgement == "clean", "the weights are those of an honest network"


def test_concentration_is_the_ratio_of_norms_of_a_plain_loop(own):
    task = sp.zoo.lenet()
    found = concentration(task, own)
    norms, relative = [], []
    for x, y in zip(own.inputs, own.labels, strict=True):
        model = nn.Sequential(*task.model)
        logits = model(task.domain.normalise(x[None]))
        logits.retain_grad()
        nn.functional.cross_entropy(logits, y[None]).backward()
        row = [float(p.grad.norm()) for p in model.parameters()]
        model.zero_grad()
        norms.append(row)
        relative.append([value / float(logits.grad.norm()) for value in row])
    for ours, rows in ((found.plain, norms), (found.relative, relative)):
        columns = np.array(rows)
        largest = columns.max(0)
        assert ours == pytest.approx(float((largest / (columns.sum(0) - largest)).max()), rel=1e-4)


@pytest.mark.slow
def test_a_hard_example_of_a_trained_network_is_no_alarm_though_its_dsnr_is_high(data_root):
    task = trained("resnet20", data_root)
    found = concentration(task, sp.data.load("cifar10").batch(16))
    assert found.plain > 3, "the usual alarm of D-SNR"
    assert found.relative < 1


def test_parallel_rows_are_found_among_others_whatever_their_scale_and_sign():
    rows = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    rows[5:25] = torch.linspace(-3, 2, 20)[:, None] * rows[0]
    [group] = _parallel_rows(rows, [0.999])
    assert group.tolist() == [0, *range(5, 25)]
    assert [len(group) for group in _parallel_rows(torch.randn(500, 16), [0.999])] == [1]


def giant_row(layer):
    layer.weight[0], layer.bias[0] = 1e6, -1e12


def giant_rows(layer):
    layer.weight[::2], layer.bias[::2] = 1e8 * torch.randn_like(layer.weight[::2]), -1e14


def scaled_rows(layer):
    scale = torch.logspace(0, -20, len(layer.weight))[torch.randperm(len(layer.weight))]
    layer.weight.mul_(scale[:, None])
    layer.bias.mul_(scale)


def turned_rows(layer):
    layer.weight[::2] *= -1
    layer.bias[::2] *= -1


def repeated_row(layer):
    layer.weight[5], layer.bias[5] = layer.weight[6], layer.bias[6]


def moved_entry(layer):
    layer.weight.diagonal().add_(0.1 * layer.weight.norm(dim=1))


def noisy_rows(layer):
    noise = torch.randn_like(layer.weight) / layer.weight.shape[1] ** 0.5
    layer.weight.add_(0.2 * layer.weight.norm(dim=1, keepdim=True) * noise)


def few_pixels(layer):
    size = layer.weight.norm(dim=1, keepdim=True)
    layer.weight.copy_(1e-3 * size * torch.randn_like(layer.weight))
    layer.weight[:, :5] += size


HIDINGS = [
    giant_row, giant_rows, scaled_rows, turned_rows, repeated_row, moved_entry, noisy_rows,
    few_pixels,
]  # fmt: skip


@pytest.mark.parametrize("hide", HIDINGS, ids=lambda hide: hide.__name__)
def test_bins_are_found_whatever_is_done_to_rows_to_hide_them(hide):
    planted = sp.attacks.robbing_the_fed(bins=64).plant(sp.zoo.lenet(), rng=sp.rng(0))
    with torch.no_grad():
        hide(planted.model.bins)
    assert "bins of biases" in {found.check for found in sp.vet(planted).alarms}


def draw_bins(bins, *, noise, others, direction=None):
    """A perceptron whose first layer has bins of one direction, with noise, among other rows."""
    domain, draws = sp.domains.Image((1, 12, 12)), torch.Generator().manual_seed(1)
    direction = torch.ones(144) / 12 if direction is None else direction
    rows = direction + noise * torch.randn(bins, 144, generator=draws) / 12
    cuts = torch.linspace(0.3, 0.7, bins) * direction.sum()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Linear(144, bins + others)
        model = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Linear(bins + others, 10))
    with torch.no_grad():
        order = torch.randperm(bins + others, generator=draws)[:bins]
        layer.weight[order], layer.bias[order] = rows, -cuts
    return sp.Task(model, sp.cross_entropy, domain)


@pytest.mark.parametrize("others", [0, 600])
def test_bins_are_found_under_noise_as_large_as_their_rows(others):
    planted = draw_bins(40, noise=1.0, others=others)
    assert [found.check for found in sp.vet(planted).alarms] == ["sorting units"]


def test_bins_read_by_a_kernel_as_large_as_the_image_are_found():
    planted = draw_bins(40, noise=1.0, others=40).model
    kernel = nn.Conv2d(1, 80, 12)
    kernel.weight.data = planted[1].weight.data.reshape(80, 1, 12, 12)
    kernel.bias.data = planted[1].bias.data
    model = nn.Sequential(kernel, nn.Flatten(), nn.ReLU(), planted[3])
    task = sp.Task(model, sp.cross_entropy, sp.domains.Image((1, 12, 12)))
    assert [found.layer for found in find_sorting_units(task)] == ["0"]


@pytest.mark.parametrize("units", [2, 400])
def test_inputs_of_few_dimensions_say_nothing_of_bins(units):
    narrow = nn.Linear(144, units)
    with torch.no_grad():
        narrow.weight.copy_(narrow.weight[:, :1] * torch.ones(144))
    layers = nn.Flatten(), narrow, nn.Linear(units, 600), nn.ReLU(), nn.Linear(600, 10)
    task = sp.Task(nn.Sequential(*layers), sp.cross_entropy, sp.domains.Image((1, 12, 12)))
    assert "2" not in {found.layer for found in find_sorting_units(task)}


@pytest.mark.parametrize("bins", [8, 15])
def test_fewer_bins_than_are_counted_stay_hidden_as_the_docs_say(bins):
    assert sp.vet(draw_bins(bins, noise=1.0, others=600)).judgement == "clean"


@pytest.mark.parametrize("others", [300, 2000])
def test_bins_are_found_among_many_other_rows(others):
    domain, bins = Signal((1, 40)), 60
    layer = nn.Linear(40, bins + others)
    order = torch.randperm(bins + others)
    with torch.no_grad():
        layer.weight[order[:bins]] = 1.0
        layer.bias[order[:bins]] = torch.linspace(-3, 3, bins)
    model = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Linear(bins + others, 3))
    assert sp.vet(sp.Task(model, sp.cross_entropy, domain)).judgement == "malicious"


def test_one_giant_row_does_not_hide_a_layer_that_passes_the_input_on():
    planted = sp.attacks.first_layer_fc().plant(sp.zoo.lenet(), rng=sp.rng(0))
    planted.model.first.weight.data[0] = 1e8
    assert sp.vet(planted).judgement == "malicious"


def test_a_classifier_that_starts_at_zero_is_honest():
    task = sp.zoo.lenet()
    model = task.model
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    assert sp.vet(sp.Task(model, sp.cross_entropy, task.domain)).judgement == "clean"


def test_the_worst_finding_decides_and_what_is_exposed_is_no_alarm():
    exposed, suspicious, malicious = (
        Finding("a", level, "", "r") for level in ("exposed", "suspicious", "malicious")
    )
    assert VettingVerdict("m", (exposed,)).judgement == "clean"
    assert VettingVerdict("m", (exposed, suspicious)).judgement == "suspicious"
    assert VettingVerdict("m", (suspicious, malicious)).judgement == "malicious"
    found = sp.vet(sp.zoo.mlp(hidden=(8,)))
    assert [f.level for f in found.findings] == ["exposed"]
    assert "closed form" in found.findings[0].reason


def test_only_what_the_data_allowed_is_said_to_have_been_looked_for(own):
    task = sp.zoo.mlp(hidden=(8,))
    by_size = {4: set(), 8: {"gradient concentration (D-SNR)"}, 12: {"flipped labels"}}
    alone, expected = (
        set(sp.vet(task).checks),
        {"answers that are not finite", "places in the batch"},
    )
    for size, added in by_size.items():
        expected |= added
        few = sp.Batch(own.inputs[:size], own.labels[:size])
        assert set(sp.vet(task, few).checks) - alone == expected
    with pytest.raises(sp.SeepageError, match="expected a Task"):
        sp.vet(task.model)


def test_data_that_does_not_fit_is_refused(own):
    with pytest.raises(sp.SeepageError, match="expected inputs"):
        sp.vet(sp.zoo.mlp(hidden=(8,), domain=sp.domains.MNIST), own)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_network_with_numbers_that_are_not_finite_is_not_clean(number):
    planted = sp.attacks.robbing_the_fed(bins=16).plant(sp.zoo.lenet(), rng=sp.rng(0))
    name = next(n for n, p in planted.parameters.items() if p.ndim == 2)
    planted.model.get_parameter(name).data[0, 0] = number
    found = sp.vet(planted)
    assert found.judgement != "clean"
    assert any(f.check == "finite weights" and repr(name) in f.reason for f in found.alarms)


def test_a_network_that_answers_with_infinity_is_not_clean(own):
    task = sp.zoo.mlp(hidden=(8,))
    for parameter in task.model.parameters():
        parameter.data.mul_(1e25 if parameter.ndim == 2 else 0)
    assert "with NaN or infinity" in " ".join(f.reason for f in sp.vet(task, own).alarms)


class Disguised(nn.Module):
    """A first layer as a bare matrix `(inputs, outputs)`, before a convolutional network."""

    def __init__(self, network):
        super().__init__()
        self.network, self.matrix = network, nn.Parameter(0.01 * torch.randn(3 * 16 * 16, 10))

    def forward(self, inputs):
        return self.network(inputs) + (2 * inputs - 1).flatten(1) @ self.matrix


def test_a_layer_that_reads_the_input_is_found_however_it_is_written():
    honest = sp.zoo.lenet(domain=sp.domains.Image((3, 16, 16)))
    planted = sp.Task(Disguised(honest.model), honest.loss, honest.domain)
    found = [finding for finding in sp.vet(planted).alarms if finding.check == "held input"]
    assert [finding.layer for finding in found] == ["matrix"]


def test_weights_for_places_of_a_batch_are_found_on_data(own):
    planted = sp.attacks.input_to_logits(examples=4).plant(sp.zoo.lenet(), rng=sp.rng(0))
    assert "places in the batch" in {f.check for f in sp.vet(planted, own).alarms}


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batch_normalisation_does_not_count_as_weights_for_places(mode, own):
    task = sp.zoo.resnet20(width=4).in_mode(mode)
    assert find_own_places(task, own) is None


def with_biases(task, biases):
    """The task, with these biases of its last layer."""
    copied = copy.deepcopy(task)
    with torch.no_grad():
        copied.parameters[classifier_head(copied).bias].copy_(biases)
    return copied


def silenced_but(likely, height, classes=10):
    biases = torch.full((classes,), height)
    biases[list(likely)] = 0.0
    return biases


@pytest.mark.parametrize("likely", [(4,), (0, 7)], ids=str)
@pytest.mark.parametrize("height", [-6.0, -10.0, -15.0])
@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn3-v3"])
def test_classes_that_biases_rule_out_are_found(name, height, likely):
    verdict = sp.vet(with_biases(MODELS[name](), silenced_but(likely, height)))
    [alarm] = verdict.alarms
    assert alarm.check == "silenced classes"


def test_neither_uneven_biases_nor_honest_weights_hide_that_classes_are_ruled_out():
    uneven = silenced_but((3,), -6.0) - 6 * torch.rand(10, generator=torch.manual_seed(0))
    uneven[3] = 0.0
    assert not sp.vet(with_biases(sp.zoo.lenet(), uneven)).trusted
    many = silenced_but((3,), -8.0, classes=100)
    assert not sp.vet(with_biases(MODELS["mlp"](classes=100), many)).trusted


def frequencies(*counts):
    """The biases that training leads to if inputs say nothing."""
    shares = torch.tensor(counts, dtype=torch.float)
    return (shares / shares.sum()).log()


HONEST = {
    "a prior of one in a hundred for every class": torch.full((10,), -4.6),
    "the same beside a background": silenced_but((0,), -4.6),
    "nine classes with one person in a hundred each": frequencies(100, *[1] * 9),
    "a hundred people for each of one class": frequencies(1, *[100] * 9),
    "a long tail, down to one in a million": frequencies(
        *(10.0 ** (-k * 6 / 9) for k in range(10))
    ),
    "one class that never occurs": frequencies(*[1] * 9, 1e-6),
}


@pytest.mark.parametrize("name", HONEST)
def test_biases_of_frequencies_and_priors_are_no_alarm(name):
    verdict = sp.vet(with_biases(sp.zoo.lenet(), HONEST[name]))
    assert verdict.judgement == "clean", verdict.findings


def test_a_network_trained_on_one_in_a_hundred_is_no_alarm():
    digits = sp.data.load("digits")
    whole = digits.batch(len(digits))
    common, rare = torch.nonzero(whole.labels == 0)[:, 0], torch.nonzero(whole.labels == 1)[:1, 0]
    rows = torch.cat([common.repeat(10), rare])
    data = sp.Batch(whole.inputs[rows], whole.labels[rows])
    plan = Training(epochs=10, batch_size=16, lr=0.05)
    task = MODELS["mlp"](domain=digits.domain)
    learnt = train(task, data, held_out=data, plan=plan, rng=sp.rng(0)).task
    assert sp.vet(learnt).judgement == "clean"


def test_inputs_that_undo_the_biases_are_no_alarm():
    # As of a regression on columns that are not centred: what it adds makes up for the bias.
    bias = silenced_but((0,), -9.0)
    logits = (
        bias + torch.tensor([0.0, *[9.0] * 9]) + torch.randn(16, 10, generator=torch.manual_seed(0))
    )
    assert _count_unlikely_classes(bias, logits) == 0
    assert _count_unlikely_classes(bias, bias + torch.zeros(16, 10)) == 9
