"""Bounds where J does not fit, and where everything lives on a card."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks import _jacobian as jacobians
from seepage.attacks._jacobian import Jacobian
from seepage.bounds import BOUNDS, CramerRao, CramerRaoRelaxed, Inversion, VanTrees, information
from seepage.bounds._information import Channel
from seepage.core._progress import listen

NOISY = sp.Client(sp.Gradient(), sp.AddGaussian(0.01))
SMALL = sp.domains.Image((3, 6, 6), mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))


@pytest.fixture(scope="module")
def people():
    """Two photos, cut to their middle."""
    photos = sp.data.bundled("photos", size=2)
    return sp.Batch(photos.inputs[..., 13:19, 13:19], photos.labels)


@pytest.fixture
def too_large(monkeypatch):
    """No Jacobian fits, and at most a few directions at once."""
    monkeypatch.setattr(jacobians, "HELD", 60_000)


def convolving():
    """A convolution and a fully connected layer, 762 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 10)
        return sp.Task(nn.Sequential(*layers), sp.cross_entropy, SMALL)


def test_the_matrix_is_the_same_product_by_product(people, too_large):
    about = information(Channel(NOISY, std=0.5), convolving(), people)
    assert about.unknowns * about.equations > jacobians.HELD
    columns = torch.autograd.functional.jacobian(about.signal, about.points[0])
    found = about.dense()
    assert torch.allclose(found, columns.T @ columns / 0.25, rtol=1e-9, atol=1e-12)
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("kind", [CramerRao, VanTrees])
def test_a_bound_from_all_products_is_the_bound_and_no_estimate(kind, people, monkeypatch):
    task = sp.zoo.mlp(hidden=(6,), activation="sigmoid", domain=SMALL)
    whole = kind()(NOISY, task, people, rng=sp.rng(0))
    monkeypatch.setattr(jacobians, "HELD", 60_000)
    found = kind()(NOISY, task, people, rng=sp.rng(0))
    assert torch.allclose(found.value, whole.value, rtol=1e-8)
    assert found.assumptions == whole.assumptions


def test_progress_is_told_over_all_points_of_a_mean(people, too_large):
    heard = []
    with listen(lambda step, total, _: heard.append((step, total))):
        VanTrees(points=4)(NOISY, convolving(), people, rng=sp.rng(0))
    unknowns = people.inputs.numel()
    assert {total for _, total in heard} == {2 * unknowns}
    steps = [step for step, _ in heard]
    assert steps == sorted(set(steps))
    assert len(steps) > 10
    assert steps[-1] == 2 * unknowns


def test_who_raises_what_may_be_held_gets_the_whole_matrix_on_any_device(people):
    about = information(Channel(NOISY, std=0.5), sp.zoo.lenet(domain=SMALL), people)
    entries = about.unknowns * about.equations
    assert not Inversion(held=entries - 1).fits(about)
    assert Inversion(held=entries).fits(about)


def test_a_function_without_forward_mode_is_differentiated_twice_backward():
    class Cubed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, change):
            (x,) = ctx.saved_tensors
            return 3 * x.square() * change

    at = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    found = Jacobian(lambda x: Cubed.apply(x), at)
    assert found.forward(torch.eye(3).double()).tolist() == [[3, 0, 0], [0, 12, 0], [0, 0, 3]]
    assert found.gram().tolist() == [[9, 0, 0], [0, 144, 0], [0, 0, 9]]


@pytest.mark.parametrize("name", BOUNDS)
def test_no_bound_makes_a_tensor_on_a_device_of_its_own(name, people):
    """What is made without a device would be made on `meta`, and could not meet the rest."""
    task = sp.zoo.mlp(hidden=(12,), activation="sigmoid", domain=SMALL)
    client = sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=1.0, noise_multiplier=0.5, batch_size=2))
    bound = BOUNDS[name]()
    plain = bound(client, task, people, rng=sp.rng(0))
    with torch.device("meta"):
        found = bound(client, task, people, rng=sp.rng(0))
    assert found.value.tolist() == plain.value.tolist()


@pytest.mark.parametrize(
    "bound",
    [
        CramerRao(inversion=Inversion(held=0, probes=2, steps=8)),
        CramerRaoRelaxed(held=0),
        VanTrees(inversion=Inversion(held=0, probes=2, steps=8)),
    ],
    ids=repr,
)
def test_no_estimate_does_either(bound, people):
    task = sp.zoo.mlp(hidden=(12,), activation="sigmoid", domain=SMALL)
    plain = bound(NOISY, task, people, rng=sp.rng(0))
    with torch.device("meta"):
        assert bound(NOISY, task, people, rng=sp.rng(0)).value.tolist() == plain.value.tolist()


def test_a_client_is_checked_without_rounding_to_tf32(people, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    allowed = []

    def loss(outputs, labels):
        if outputs.dtype == torch.float32:
            allowed.append(torch.backends.cudnn.allow_tf32)
        return sp.cross_entropy(outputs, labels)

    task = replace(sp.zoo.mlp(hidden=(12,), domain=SMALL), loss=loss)
    CramerRaoRelaxed()(NOISY, task, people, rng=sp.rng(0))
    assert allowed
    assert not any(allowed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
@pytest.mark.parametrize("name", BOUNDS)
def test_a_card_says_what_a_cpu_says(name, people, too_large):
    task = convolving()
    client = sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=1.0, noise_multiplier=0.5, batch_size=2))
    there = task.to(device="cuda"), people.to(device="cuda")
    plain, found = (BOUNDS[name]()(client, *on, rng=sp.rng(0)) for on in ((task, people), there))
    assert torch.allclose(found.value, plain.value, rtol=1e-6)
    assert found.remark == plain.remark
