"""What a two-layer head gives away of real images, and of the features of a deep network."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import seepage as sp
from seepage.attacks.feature_recovery import FeatureRecovery, NotGaussianWarning
from seepage.core.errors import MissingKnowledge, NotApplicable

PHOTOS = sp.data.load("photos", pixels=8)


def observe(task, batch, *, defense=None, local=None, **known):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat(**known).observe(client, task, batch, rng=sp.rng(0))


def two_layer(**options):
    return sp.zoo.two_layer(**{"neurons": 1024, "domain": PHOTOS.domain, **options})


def read(task, batch):
    """What the head of a task reads, `(B, d)`."""
    if task.name.startswith("two_layer"):
        return task.domain.normalise(batch.inputs).flatten(1).double()
    seen = []
    handle = task.network.fc.register_forward_pre_hook(lambda _, z: seen.append(z[0].detach()))
    task.outputs(task.parameters, batch.inputs)
    handle.remove()
    return seen[0].double()


def outside(truth, features):
    """The paper's error: how much of a true feature of length one lies outside the span."""
    unit, span = functional.normalize(truth, dim=1), features.span.double()
    return float((unit - (unit @ span) @ span.T).norm(dim=1).mean())


def cosines(truth, features):
    found = functional.normalize(features.values.double(), dim=1)
    return (functional.normalize(truth, dim=1) @ found.T).amax(1)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "gelu"])
@pytest.mark.parametrize("loss", ["cross_entropy", "square"])
def test_exact_features_are_exact_for_every_activation_and_loss(activation, loss):
    task, batch = two_layer(activation=activation, loss=loss), PHOTOS.batch(4)
    found = sp.attacks.exact_features().recover(
        observe(task, batch, knows_labels=True), rng=sp.rng(1)
    )
    truth = read(task, batch)
    assert outside(truth, found) < 1e-4
    assert cosines(truth, found).min() > 0.9999
    assert found.scaled
    lengths = found.values.double().norm(dim=1).sort().values
    assert torch.allclose(lengths, truth.norm(dim=1).sort().values, rtol=1e-2)


def test_neither_labels_nor_the_batch_size_are_needed_behind_relu():
    task, batch = two_layer(), PHOTOS.batch(8)
    seen = observe(task, batch, knows_batch_size=False)
    guess = sp.attacks.exact_features()(seen, rng=sp.rng(1))
    assert sp.score(guess, batch)["psnr"].min() > 80
    assert sorted(guess.labels.tolist()) == sorted(batch.labels.tolist())
    assert guess.certificate.residual < 1e-4


def test_the_features_of_a_deep_network_come_back_and_are_not_taken_for_inputs():
    photos = sp.data.load("photos", pixels=16)
    task = sp.zoo.wide_head_resnet18(width=4, neurons=2048, trained=256, domain=photos.domain)
    batch = photos.batch(4)
    seen = observe(task, batch)
    found = sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    assert found.layer == "fc.hidden"
    assert cosines(read(task, batch), found).min() > 0.9999
    with pytest.raises(NotApplicable, match=r"use recover\(...\).*systematic"):
        sp.attacks.exact_features()(seen, rng=sp.rng(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "most"),
    [
        (sp.Clip(0.01), 1e-4),
        (sp.Prune(0.3), 1e-3),
        (sp.Prune(0.7), 0.02),
        (sp.Dropout(0.3), 1e-3),
        (sp.AddGaussian(1e-4), 0.05),
    ],
    ids=repr,
)
def test_defenses_of_the_update_leave_little_to_be_desired(defense, most):
    task, batch = two_layer(neurons=2048), PHOTOS.batch(3)
    seen = observe(task, batch, defense=defense, knows_labels=True)
    found = sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    assert outside(read(task, batch), found) < most


@pytest.mark.slow
def test_local_steps_are_about_a_gradient():
    task, batch = two_layer(), PHOTOS.batch(3)
    seen = observe(task, batch, local=sp.FedAvg(lr=0.01, steps=5), knows_labels=True)
    found = sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    assert cosines(read(task, batch), found).min() > 0.999


@pytest.mark.parametrize(("activation", "most"), [("relu", 0.1), ("tanh", 0.5)])
def test_tensor_features_find_about_what_the_theory_says(activation, most):
    photos = sp.data.load("photos", pixels=2)
    task = two_layer(activation=activation, neurons=32_768, domain=photos.domain)
    batch = photos.batch(2)
    found = sp.attacks.tensor_features().recover(observe(task, batch), rng=sp.rng(1))
    truth = read(task, batch)
    assert outside(truth, found) < most
    assert not found.scaled


def test_taking_the_line_away_makes_moments_less_noisy():
    task, batch = two_layer(neurons=8192), PHOTOS.batch(2)
    seen, truth = observe(task, batch), read(task, batch)
    plain = sp.attacks.tensor_features().recover(seen, rng=sp.rng(1))
    reduced = sp.attacks.tensor_features(reduced=True).recover(seen, rng=sp.rng(1))
    assert outside(truth, reduced) < 0.75 * outside(truth, plain)


def test_both_recover_features():
    assert isinstance(sp.attacks.exact_features(), FeatureRecovery)
    assert isinstance(sp.attacks.tensor_features(), FeatureRecovery)


def test_a_head_that_is_too_narrow_is_told_how_wide_it_must_be():
    seen = observe(two_layer(neurons=8), PHOTOS.batch(7))
    with pytest.raises(NotApplicable, match="feature recovery needs 13 neurons or more"):
        sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    with pytest.raises(NotApplicable, match="needs 192 neurons at the very least"):
        sp.attacks.tensor_features().recover(seen, rng=sp.rng(1))


def test_equal_inputs_are_not_told_apart_and_the_sentence_says_so():
    one = PHOTOS.batch(2)
    twice = sp.Batch(one.inputs[[0, 0, 1]], one.labels[[0, 0, 1]])
    with pytest.raises(NotApplicable, match="rank 2 for 3 examples: some features are equal"):
        sp.attacks.exact_features().recover(observe(two_layer(), twice), rng=sp.rng(1))
    others = observe(two_layer(), twice, knows_batch_size=False)
    found = sp.attacks.exact_features().recover(others, rng=sp.rng(1))
    assert cosines(read(two_layer(), one), found).min() > 0.9999


def test_noise_hides_how_many_people_there_are():
    seen = observe(
        two_layer(), PHOTOS.batch(2), defense=sp.AddGaussian(0.01), knows_batch_size=False
    )
    with pytest.raises(MissingKnowledge, match="batch size"):
        sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    with pytest.raises(MissingKnowledge, match="batch size"):
        sp.attacks.tensor_features().recover(seen, rng=sp.rng(1))


def test_weights_that_are_not_gaussian_are_warned_about_with_the_statistic():
    task = sp.zoo.mlp(hidden=(512,), bias=False, domain=PHOTOS.domain)
    seen = observe(task, PHOTOS.batch(1))
    with pytest.warns(NotGaussianWarning, match=r"Kolmogorov-Smirnov distance is \d+\.\d"):
        sp.attacks.tensor_features().recover(seen, rng=sp.rng(1))
    found = sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    assert cosines(read(two_layer(), PHOTOS.batch(1)), found).min() > 0.9999


def test_a_last_layer_without_a_gradient_gives_nothing_away():
    seen = observe(two_layer(), PHOTOS.batch(2))
    tensors = {**seen.update.tensors, "head.weight": torch.zeros(10, 1024)}
    silent = replace(seen, update=replace(seen.update, tensors=tensors))
    with pytest.raises(NotApplicable, match="gradient of the last layer is zero"):
        sp.attacks.exact_features().recover(silent, rng=sp.rng(1))


def sequential(*layers):
    return sp.Task(nn.Sequential(nn.Flatten(), *layers), sp.cross_entropy, PHOTOS.domain)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (sequential(nn.Linear(192, 4)), "to end in two fully connected layers"),
        (sequential(nn.Linear(192, 64), nn.Softmax(1), nn.Linear(64, 4)), "none of the element"),
        (sequential(nn.Linear(192, 64), nn.Linear(64, 4)), "no activation between"),
    ],
)
def test_other_heads_are_refused_in_a_sentence(task, sentence):
    batch = sp.Batch(PHOTOS.batch(2).inputs, torch.tensor([0, 1]))
    with pytest.raises(NotApplicable, match=sentence):
        sp.attacks.exact_features().recover(observe(task, batch), rng=sp.rng(1))


def test_more_people_than_a_pruned_layer_reads_are_refused_at_once():
    domain = sp.domains.Image((1, 2, 2))
    task = sp.zoo.two_layer(neurons=64, domain=domain)
    batch = sp.Batch(torch.rand(6, 1, 2, 2), torch.arange(6))
    seen = observe(task, batch, defense=sp.Prune(0.5), knows_labels=True)
    with pytest.raises(NotApplicable, match="cannot be told apart"):
        sp.attacks.exact_features().recover(seen, rng=sp.rng(0))


class Squares(TorchDispatchMode):
    """Notes tensors that hold a matrix with at least `side` rows and columns."""

    def __init__(self, side):
        super().__init__()
        self.side, self.seen = side, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor) and one.ndim > 1 and min(one.shape[-2:]) >= self.side:
                self.seen.append(f"{function} {tuple(one.shape)}")
        return made


# Classes of two examples, so that the spread around a class mean is looked for as well.
@pytest.mark.filterwarnings("ignore::seepage.attacks.feature_recovery.NotToldApartWarning")
@pytest.mark.parametrize(
    ("activation", "defense"),
    [("tanh", sp.chain()), pytest.param("relu", sp.Prune(0.5), marks=pytest.mark.slow)],
    ids=str,
)
def test_no_matrix_is_as_large_as_the_square_of_what_a_narrow_layer_reads(activation, defense):
    domain = sp.domains.Image((1, 20, 20))
    task = two_layer(neurons=48, activation=activation, domain=domain)
    batch = sp.Batch(domain.sample(4, rng=sp.rng(2)), torch.tensor([0, 0, 1, 1]))
    seen = observe(task, batch, defense=defense, knows_labels=True)
    with Squares(400) as squares:
        sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    assert squares.seen == []
