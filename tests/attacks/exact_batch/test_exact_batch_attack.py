"""Whole batches of real images come back exactly, and where they cannot it is said why."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.exact_batch import Complementarity, ExactBatch, KernelSampling
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Signal
from seepage.probing._first_layer import Rectified, rectified_layer
from seepage.scoring import pair

SAMPLING = ExactBatch(searches=(KernelSampling(),))


def observe(task, batch, *, local=None, defense=None, **knows):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat(**knows).observe(client, task, batch, rng=sp.rng(0))


def network(data, *hidden, dtype=torch.float64, seed=0):
    return sp.zoo.mlp(hidden=hidden, domain=data.domain, seed=seed).to(dtype=dtype)


def private(data, people, *, dtype=torch.float64, start=0):
    return data.batch(people, start=start).to(dtype=dtype)


def invert(seen, attack=None):
    return (attack or sp.attacks.exact_batch())(seen, rng=sp.rng(1))


def largest_error(guess, batch):
    paired = pair(guess, batch)
    return float((paired.guess - paired.truth).abs().max())


def labels_right(guess, batch):
    paired = pair(guess, batch)
    return bool((paired.guessed_labels == paired.labels).all())


@pytest.fixture(scope="module")
def digits():
    return sp.data.load("digits")


@pytest.fixture(scope="module")
def images(data_root, request):
    return sp.data.load(request.param)


@pytest.mark.parametrize("images", ["mnist", "cifar10"], indirect=True)
@pytest.mark.parametrize(("people", "width"), [(2, 64), (4, 64), (8, 64), (16, 128)])
def test_a_batch_of_real_images_comes_back_exactly_with_its_labels(images, people, width):
    batch = private(images, people, start=100)
    guess = invert(observe(network(images, width), batch))
    assert largest_error(guess, batch) < 1e-10
    assert labels_right(guess, batch)
    assert guess.certificate.residual < 1e-10
    assert guess.certificate.unique


@pytest.mark.parametrize("images", ["mnist", "cifar10"], indirect=True)
def test_single_precision_and_depth_do_not_protect(images):
    batch = private(images, 8, dtype=torch.float32)
    guess = invert(observe(network(images, 128, 64, dtype=torch.float32), batch))
    assert largest_error(guess, batch) < 1e-5
    assert labels_right(guess, batch)
    assert guess.certificate.unique


@pytest.mark.parametrize("images", ["cifar10"], indirect=True)
@pytest.mark.parametrize("people", [2, 5, 7])
def test_kernel_sampling_alone_finds_everybody(images, people):
    batch = private(images, people)
    guess = invert(observe(network(images, 96), batch), SAMPLING)
    assert largest_error(guess, batch) < 1e-10
    assert guess.certificate.unique


@pytest.mark.parametrize("images", ["mnist"], indirect=True)
def test_least_squares_reaches_batches_and_widths_that_sampling_does_not(images):
    batch = private(images, 24)
    seen = observe(network(images, 96), batch)
    assert largest_error(invert(seen), batch) < 1e-10
    with pytest.raises(NotApplicable, match=r"24 examples .* probability .* smaller batch"):
        invert(seen, SAMPLING)


@pytest.mark.parametrize("images", ["mnist"], indirect=True)
def test_a_neuron_hardly_anybody_activates_does_not_upset_the_others(images):
    # Of this network one neuron is 250 times as quiet as the rest.
    batch = private(images, 16, start=112)
    guess = invert(observe(network(images, 64, seed=7), batch))
    assert largest_error(guess, batch) < 1e-10


def test_photos_of_the_package_come_back_whoever_counts_them(photos):
    task = sp.zoo.mlp(hidden=(64,))
    for knows in (True, False):
        guess = invert(observe(task, photos, knows_batch_size=knows))
        assert guess.inputs.shape == photos.inputs.shape
        assert largest_error(guess, photos) < 1e-5


def test_known_labels_are_dealt_out_one_to_each(digits):
    batch = private(digits, 6)
    guess = invert(observe(network(digits, 64), batch, knows_labels=True))
    assert labels_right(guess, batch)
    assert sorted(guess.labels.tolist()) == sorted(batch.labels.tolist())


def test_known_mixed_labels_are_dealt_out_too(digits):
    plain = private(digits, 4)
    mixed = torch.eye(10, dtype=torch.float64)[plain.labels].roll(1, 0)
    soft = 0.7 * torch.eye(10, dtype=torch.float64)[plain.labels] + 0.3 * mixed
    batch = sp.Batch(plain.inputs, soft)
    guess = invert(observe(network(digits, 64), batch, knows_labels=True))
    paired = pair(guess, batch)
    assert torch.equal(paired.guessed_labels, soft)
    assert guess.certificate.residual < 1e-10


@pytest.mark.parametrize(
    ("local", "defense"),
    [
        (sp.FedAvg(lr=0.05, steps=1), sp.chain()),
        (sp.Gradient(reduction="sum"), sp.Clip(1e-2)),
        (sp.Gradient(), sp.chain(sp.ClipEach(0.1), sp.Mean())),
    ],
    ids=str,
)
def test_one_local_step_and_clipping_change_nothing(digits, local, defense):
    batch = private(digits, 8)
    seen = observe(network(digits, 96), batch, local=local, defense=defense)
    guess = invert(seen)
    assert largest_error(guess, batch) < 1e-8
    assert labels_right(guess, batch)
    assert guess.certificate.unique


@pytest.mark.parametrize(
    "local",
    [sp.FedAvg(lr=0.01, steps=5), sp.FedAvg(lr=0.01, epochs=2, local_batch_size=2)],
    ids=str,
)
def test_after_several_local_steps_sampling_takes_over(digits, local):
    batch = private(digits, 4)
    attack = ExactBatch(searches=(Complementarity(rounds=2), KernelSampling(rounds=4)))
    guess = invert(observe(network(digits, 128), batch, local=local), attack)
    assert largest_error(guess, batch) < 1e-8
    assert labels_right(guess, batch)


@pytest.mark.parametrize("knows", [{}, {"knows_batch_size": False}, {"knows_labels": True}])
@pytest.mark.parametrize("people", [(0, 1, 2, 3, 3), (0, 0, 0, 1, 1, 2, 4)])
def test_equal_inputs_come_back_as_often_as_they_are_there(digits, people, knows):
    batch = digits.take(people).to(dtype=torch.float64)
    guess = invert(observe(network(digits, 64), batch, **knows))
    assert len(guess.inputs) == len(people)
    assert largest_error(guess, batch) < 1e-10
    assert labels_right(guess, batch)
    # Two that are nearly equal would explain the update nearly as well.
    assert guess.certificate.unique is None


@pytest.mark.parametrize("knows", [{}, {"knows_batch_size": False}, {"knows_labels": True}])
def test_equal_inputs_with_different_labels_come_back_with_both(digits, knows):
    batch = sp.Batch(digits.take([0, 1, 2, 2]).inputs.double(), torch.tensor([0, 1, 2, 7]))
    guess = invert(observe(network(digits, 64), batch, **knows))
    assert largest_error(guess, batch) < 1e-10
    assert sorted(guess.labels.tolist()) == [0, 1, 2, 7]


@pytest.mark.parametrize("odd", ["zeros", "darker copy", "darker mean"])
@pytest.mark.parametrize("knows", [{}, {"knows_batch_size": False}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_input_that_adds_no_rank_comes_back_with_the_others(digits, odd, knows, dtype):
    batch = private(digits, 4, dtype=dtype)
    first, second = batch.inputs[1], batch.inputs[2]
    made = {"zeros": 0 * first, "darker copy": first / 2, "darker mean": (first + second) / 4}
    batch = replace(batch, inputs=torch.stack([made[odd], *batch.inputs[1:]]))
    # Its layer reads the inputs as they are.
    domain = sp.domains.Image((1, 28, 28))
    task = sp.zoo.mlp(hidden=(64,), domain=domain, seed=0).to(dtype=dtype)
    guess = invert(observe(task, batch, **knows))
    assert largest_error(guess, batch) < (1e-8 if dtype == torch.float64 else 1e-3)
    assert guess.certificate.error > largest_error(guess, batch)
    assert labels_right(guess, batch)


def test_a_batch_of_one_input_twice_comes_back_if_its_size_is_known(digits):
    batch = digits.take([3, 3]).to(dtype=torch.float64)
    assert largest_error(invert(observe(network(digits, 64), batch)), batch) < 1e-10
    # The mean gradient of one input is the same however often it is there.
    alone = invert(observe(network(digits, 64), batch, knows_batch_size=False))
    assert len(alone.inputs) <= 2
    assert float((alone.inputs - batch.inputs[:1]).abs().max()) < 1e-10


def test_too_narrow_a_layer_is_refused_with_its_odds(digits):
    batch = private(digits, 12)
    with pytest.raises(NotApplicable, match=r"12 examples through \d+ neurons .* probability"):
        invert(observe(network(digits, 20), batch))
    with pytest.raises(NotApplicable, match="rank 6 at most, too little for 12 examples"):
        invert(observe(network(digits, 6), batch))


def test_noise_costs_digits_and_the_certificate_owns_up(digits):
    batch = private(digits, 4)
    errors = []
    for std in (0.0, 1e-8, 1e-6, 1e-4, 1e-2):
        seen = observe(network(digits, 128), batch, defense=sp.AddGaussian(std))
        guess = invert(seen)
        errors.append(largest_error(guess, batch))
        assert guess.certificate.unique == (True if std < 1e-7 else None)
        if std < 1e-5:
            assert guess.certificate.error > errors[-1]
    assert errors == sorted(errors)
    assert errors[2] < 1e-3
    assert errors[3] < 0.05
    assert guess.certificate.residual > 0.1


def test_behind_strong_noise_or_pruning_it_still_makes_its_best_effort(digits):
    batch = private(digits, 3)
    few = ExactBatch(searches=(Complementarity(rounds=1), KernelSampling(rounds=1)))
    for defense in (sp.AddGaussian(0.3), sp.Prune(0.9)):
        guess = invert(observe(network(digits, 64), batch, defense=defense), few)
        assert guess.inputs.shape == batch.inputs.shape
        assert bool(guess.inputs.isfinite().all())
        assert guess.certificate.residual > 0.1
        assert guess.certificate.unique is None


@pytest.mark.parametrize("option", ["starts", "samples"])
def test_a_search_that_would_not_search_is_refused(option):
    with pytest.raises(InvalidValue, match=f"expected {option} >= 1, got 0"):
        sp.attacks.exact_batch(**{option: 0})


def test_the_same_key_gives_the_same_guess(photos):
    seen = observe(sp.zoo.mlp(hidden=(48,)), photos)
    assert torch.equal(invert(seen).inputs, invert(seen).inputs)


class Residual(nn.Module):
    """Two layers read the rectified one, so that what reaches it is not of one matrix."""

    def __init__(self, rectifier=torch.relu) -> None:
        super().__init__()
        self.rectifier = rectifier
        self.reader = nn.Linear(40, 60)
        self.inner = nn.Linear(60, 60)
        self.head = nn.Linear(60, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.rectifier(self.reader(x.flatten(1)))
        return self.head(z + torch.tanh(self.inner(z)))


def test_sampling_serves_where_the_layer_above_is_not_alone():
    domain = Signal((1, 40))
    torch.manual_seed(0)
    task = sp.Task(Residual(), sp.cross_entropy, domain).to(dtype=torch.float64)
    assert rectified_layer(task) == Rectified("reader", None)
    batch = sp.Batch(domain.sample(5, rng=sp.rng(0)).double(), torch.tensor([0, 1, 2, 3, 3]))
    guess = invert(observe(task, batch))
    assert largest_error(guess, batch) < 1e-8
    assert labels_right(guess, batch)


def test_the_rectified_layer_is_known_by_what_it_does():
    assert rectified_layer(sp.zoo.mlp(hidden=(8, 4))) == Rectified("hidden1", "hidden2")
    assert rectified_layer(sp.zoo.mlp(hidden=(8,))) == Rectified("hidden1", "head")
    layers = nn.Flatten(), nn.Linear(10, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)
    task = sp.Task(nn.Sequential(*layers), sp.cross_entropy, Signal((1, 10)))
    assert rectified_layer(task) == Rectified("1", "3")


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "gelu", "leaky_relu"])
def test_a_layer_without_relu_is_refused_with_what_to_use(digits, activation):
    task = sp.zoo.mlp(hidden=(32,), activation=activation, domain=digits.domain)
    seen = observe(task, digits.batch(2))
    with pytest.raises(NotApplicable, match=r"not followed by a ReLU.*use gradient matching"):
        invert(seen)


def test_a_convolutional_network_is_refused_with_what_to_use(photos):
    seen = observe(sp.zoo.cnn(variant="cnn2-v2"), photos)
    with pytest.raises(NotApplicable, match=r"no fully connected layer.*use gradient matching"):
        invert(seen)


def test_a_frozen_first_layer_is_refused(digits):
    task = network(digits, 16)
    model = task.model
    model.hidden1.bias.requires_grad_(False)
    task = replace(task, model=model, _owned=None)
    with pytest.raises(NotApplicable, match="frozen"):
        invert(observe(task, private(digits, 2)))


@pytest.mark.parametrize(("odd", "fails"), [(False, False), (True, True)])
def test_a_guess_whose_targets_cannot_be_found_still_tells_whether_it_fails(digits, odd, fails):
    # A class and a weight: what a loss makes of them cannot be undone.
    def weigh(outputs, targets):
        each = nn.functional.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
        return each * targets[:, 1]

    batch, plain = private(digits, 3), network(digits, 64)
    # The mean of the others adds no rank.
    inputs = torch.cat(
        [batch.inputs[1:].mean(0, keepdim=True) if odd else batch.inputs[:1], batch.inputs[1:]]
    )
    targets = torch.stack([batch.labels.double(), torch.tensor([1.0, 0.5, 0.8]).double()], 1)
    task = sp.Task(plain.model, weigh, digits.domain, target_shape=(2,))
    quick = ExactBatch(searches=(KernelSampling(samples=512, rounds=2),))
    guess = invert(observe(task, sp.Batch(inputs, targets)), quick)
    assert guess.labels is None
    assert guess.certificate.unique is None
    assert (guess.certificate.residual > 0.1) == fails
    assert fails or guess.certificate.residual < 1e-3
