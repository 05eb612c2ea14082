"""R-GAP is exact where every layer leaves one solution, and says so; elsewhere it does not."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import seepage as sp
from seepage.attacks.linear_systems import _rgap as rgap
from seepage.attacks.linear_systems._rgap import _solve_head_deltas
from seepage.core import SideBySide
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.domains import Image, Signal
from seepage.probing._layer_stack import read_stack


def observe(task, batch, *, local=None, defense=None, labels=True):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat(knows_labels=labels).observe(client, task, batch, rng=sp.rng(0))


def photo(pixels, i=0):
    photos = sp.data.load("photos", pixels=pixels).batch(4)
    return sp.Batch(photos.inputs[i : i + 1], photos.labels[i : i + 1])


def psnr(guess, batch):
    return sp.score(guess, batch)["psnr"].item()


def task_of(*modules, domain, loss=sp.cross_entropy, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(*(make() for make in modules))
    return sp.Task(model, loss, domain, name="mine")


def make(kind, *arguments, **options):
    return lambda: kind(*arguments, **options)


TINY = Image((3, 10, 10), mean=(0.5, 0.5, 0.5))
FLAT = make(nn.Flatten)
DETERMINED = {
    "one convolution, tanh, no bias": (
        make(nn.Conv2d, 3, 8, 3, bias=False),
        make(nn.Tanh),
        FLAT,
        make(nn.Linear, 512, 10),
    ),
    "two convolutions with bias, leaky": (
        make(nn.Conv2d, 3, 8, 3, padding=1),
        make(nn.LeakyReLU, 0.2),
        make(nn.Conv2d, 8, 12, 3),
        make(nn.LeakyReLU, 0.2),
        FLAT,
        make(nn.Linear, 768, 10),
    ),
    "stride and padding, sigmoid": (
        make(nn.Conv2d, 3, 16, 4, stride=2, padding=1),
        make(nn.Sigmoid),
        FLAT,
        make(nn.Linear, 400, 10),
    ),
    "a head of two layers, identity between": (
        make(nn.Conv2d, 3, 8, 3),
        FLAT,
        make(nn.Linear, 512, 20),
        make(nn.Tanh),
        make(nn.Linear, 20, 10),
    ),
    "fully connected without any bias": (
        FLAT,
        make(nn.Linear, 300, 20, bias=False),
        make(nn.Sigmoid),
        make(nn.Linear, 20, 15, bias=False),
        make(nn.LeakyReLU, 0.1),
        make(nn.Linear, 15, 10, bias=False),
    ),
    "a convolution before a head without bias": (
        make(nn.Conv2d, 3, 8, 3, bias=False),
        make(nn.Tanh),
        FLAT,
        make(nn.Linear, 512, 10, bias=False),
    ),
    "enough filters that half of them suffice behind a ReLU": (
        make(nn.Conv2d, 3, 24, 3),
        make(nn.ReLU),
        FLAT,
        make(nn.Linear, 24 * 64, 10),
    ),
}


@pytest.mark.parametrize("name", DETERMINED)
def test_networks_that_leave_one_solution_give_the_photo_back(name):
    task, batch = task_of(*DETERMINED[name], domain=TINY), photo(10)
    guess = sp.attacks.rgap()(observe(task, batch), rng=sp.rng(1))
    assert psnr(guess, batch) > 60
    assert guess.certificate.residual < 1e-4
    assert guess.certificate.unique


@pytest.mark.parametrize("name", DETERMINED)
@pytest.mark.parametrize(
    "defense",
    [
        None,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (sp.AddGaussian(1e-3), sp.Prune(0.5))),
    ],
    ids=str,
)
def test_inverting_convolutions_only_makes_it_faster(name, defense, monkeypatch):
    task, batch = task_of(*DETERMINED[name], domain=TINY), photo(10)
    seen = observe(task, batch, defense=defense and sp.chain(defense))
    fast = sp.attacks.rgap()(seen, rng=sp.rng(1))
    monkeypatch.setattr(rgap, "invert_slopes", lambda *_: None)
    plain = sp.attacks.rgap()(seen, rng=sp.rng(1))
    torch.testing.assert_close(fast.inputs, plain.inputs, rtol=1e-4, atol=1e-5)
    assert fast.certificate.unique == plain.certificate.unique
    if plain.certificate.error is not None:
        # Rounding of the guess is part of the error.
        assert fast.certificate.error == pytest.approx(plain.certificate.error, rel=0.5)
        assert sp.certify(seen, fast).error == pytest.approx(fast.certificate.error, rel=0.2)


def test_relu_with_few_filters_leaves_freedom_and_nothing_is_claimed():
    modules = (make(nn.Conv2d, 3, 3, 3), make(nn.ReLU), FLAT, make(nn.Linear, 192, 10))
    batch = photo(10)
    guess = sp.attacks.rgap()(observe(task_of(*modules, domain=TINY), batch), rng=sp.rng(1))
    assert bool(guess.inputs.isfinite().all())
    assert guess.certificate.unique is None
    assert psnr(guess, batch) < 60


def test_a_variant_of_full_rank_gives_a_cifar_image_back(data_root, monkeypatch):
    monkeypatch.setenv("SEEPAGE_DATA", str(data_root))
    batch = sp.data.load("cifar10").batch(1)
    guess = sp.attacks.rgap()(observe(sp.zoo.cnn(variant="cnn2-v1"), batch), rng=sp.rng(1))
    assert psnr(guess, batch) > 60
    assert guess.certificate.unique


def test_a_heart_beat_comes_back_through_convolutions_over_time(data_root, monkeypatch):
    monkeypatch.setenv("SEEPAGE_DATA", str(data_root))
    data = sp.data.load("ecg")
    length = data.domain.shape[1]
    modules = (
        make(nn.Conv1d, 1, 4, 5, stride=2, padding=2, bias=False),
        make(nn.LeakyReLU, 0.1),
        FLAT,
        make(nn.Linear, 4 * ((length - 1) // 2 + 1), 5),
    )
    batch = data.batch(1)
    guess = sp.attacks.rgap()(observe(task_of(*modules, domain=data.domain), batch), rng=sp.rng(1))
    assert (guess.inputs - batch.inputs).norm() < 1e-4 * batch.inputs.norm()
    assert guess.certificate.unique


@pytest.mark.parametrize("variant", ["cnn2-v2", "cnn3-v4"])
def test_deficient_variants_claim_nothing(variant):
    batch = photo(16)
    task = sp.zoo.cnn(variant=variant, domain=Image((3, 16, 16)))
    guess = sp.attacks.rgap()(observe(task, batch), rng=sp.rng(1))
    assert guess.certificate.unique is None
    assert psnr(guess, batch) < 40


def logistic(sign):
    """log(1 + exp(-y u)) of one output u, for the label y."""
    return lambda outputs, labels: softplus(-sign * outputs[:, 0])


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("scale", [0.3, 30.0])
def test_a_logistic_head_is_solved_on_both_sides_of_its_fold(sign, scale):
    domain = Signal((1, 12), bounds=(0.0, 1.0))
    batch = sp.Batch(domain.sample(1, rng=sp.rng(3)), torch.tensor([0]))
    modules = (FLAT, make(nn.Linear, 12, 8, bias=False), make(nn.Tanh))
    task = task_of(*modules, make(nn.Linear, 8, 1, bias=False), domain=domain, loss=logistic(sign))
    with torch.no_grad():
        task.parameters["3.weight"].mul_(scale)
    task = sp.Task(task.model, task.loss, domain)
    guess = sp.attacks.rgap()(observe(task, batch), rng=sp.rng(1))
    assert (guess.inputs - batch.inputs).norm() < 1e-3 * batch.inputs.norm()
    assert guess.certificate.residual < 1e-4


def test_several_are_computed_side_by_side_from_every_gradient_at_the_logits():
    domain = Signal((1, 12), bounds=(0.0, 1.0))
    modules = (FLAT, make(nn.Linear, 12, 8, bias=False), make(nn.Tanh))
    task = task_of(*modules, make(nn.Linear, 8, 1, bias=False), domain=domain, loss=logistic(1.0))
    batches = [
        sp.Batch(domain.sample(1, rng=sp.rng(i)), torch.tensor([0])).to(dtype=torch.float64)
        for i in range(4)
    ]
    seen = [observe(task.to(dtype=torch.float64), batch) for batch in batches]
    attack, rngs = sp.attacks.rgap(), [sp.rng(1)] * 4
    assert isinstance(attack, SideBySide)
    for guess, batch, one in zip(attack.many(seen, rngs=rngs), batches, seen, strict=True):
        assert (guess.inputs - batch.inputs).norm() < 1e-6 * batch.inputs.norm()
        torch.testing.assert_close(guess.inputs, attack(one, rng=sp.rng(1)).inputs)


def test_the_logistic_equation_has_two_solutions_and_both_are_found():
    domain = Signal((1, 4), bounds=(-9.0, 9.0))
    task = task_of(FLAT, make(nn.Linear, 4, 1, bias=False), domain=domain, loss=logistic(1.0))
    (head,) = read_stack(task).layers
    x = head.weight[0] / head.weight.square().sum()
    for margin in (0.5, 3.0):
        delta = -torch.sigmoid(torch.tensor([-margin], dtype=torch.float64))
        found = _solve_head_deltas(head, delta[:, None] * margin * x, task.loss, torch.tensor([0]))
        assert len(found) == 2
        assert min(float((root - delta).abs()) for root in found) < 1e-10
        # u / (1 + exp(u)) is what the weight gradient fixes; both solutions have it.
        for root in found:
            u = torch.logit(-root).neg()
            torch.testing.assert_close(u * -root, margin * -delta)


def test_scale_and_sign_of_the_update_do_not_matter_with_a_bias():
    task, batch = sp.zoo.cnn(variant="cnn2-v1", domain=TINY), photo(10)
    for local, defense in (
        (sp.Gradient(), sp.Clip(1e-3)),
        (sp.FedAvg(lr=0.01, steps=1), sp.chain()),
    ):
        seen = observe(task, batch, local=local, defense=defense)
        assert psnr(sp.attacks.rgap()(seen, rng=sp.rng(1)), batch) > 60


def test_a_gradient_of_another_network_is_found_out():
    batch = photo(10)
    ours, other = (sp.zoo.cnn(variant="cnn2-v1", domain=TINY, seed=seed) for seed in (0, 1))
    seen = replace(observe(ours, batch), update=observe(other, batch).update)
    certificate = sp.attacks.rgap()(seen, rng=sp.rng(1)).certificate
    assert certificate.residual > 0.1
    assert certificate.unique is None


def test_noise_degrades_gracefully_and_the_certificate_says_so():
    task, batch = sp.zoo.cnn(variant="cnn2-v1", domain=TINY), photo(10)
    reached = []
    for deviation in (1e-6, 1e-4, 1e-2):
        seen = observe(task, batch, defense=sp.AddGaussian(deviation))
        guess = sp.attacks.rgap()(seen, rng=sp.rng(1))
        assert bool(guess.inputs.isfinite().all())
        reached.append(psnr(guess, batch))
    assert reached == sorted(reached, reverse=True)
    assert guess.certificate.residual > 1e-2
    assert guess.certificate.unique is None


def test_damping_helps_against_strong_noise():
    batch = photo(10)
    seen = observe(sp.zoo.cnn(variant="cnn3-v3", domain=TINY), batch, defense=sp.AddGaussian(0.03))
    plain, damped = (
        psnr(sp.attacks.rgap(damping=damping)(seen, rng=sp.rng(1)), batch) for damping in (0.0, 0.3)
    )
    assert damped > plain + 3


def test_with_a_bias_no_label_is_needed_and_nothing_is_certified():
    batch = photo(10)
    seen = observe(sp.zoo.cnn(variant="cnn2-v1", domain=TINY), batch, labels=False)
    guess = sp.attacks.rgap()(seen, rng=sp.rng(1))
    assert psnr(guess, batch) > 60
    assert guess.certificate is None


def test_without_a_bias_the_label_is_needed():
    modules = DETERMINED["a convolution before a head without bias"]
    seen = observe(task_of(*modules, domain=TINY), photo(10), labels=False)
    with pytest.raises(MissingKnowledge, match=r"'3', which has no bias, needs the labels"):
        sp.attacks.rgap()(seen, rng=sp.rng(1))


def test_a_batch_a_convolutional_head_and_negative_damping_are_refused():
    task = sp.zoo.cnn(variant="cnn2-v1", domain=TINY)
    with pytest.raises(NotApplicable, match="update of one example, got one of 4"):
        sp.attacks.rgap()(observe(task, sp.data.load("photos", pixels=10).batch(4)), rng=sp.rng(1))
    last = task_of(make(nn.Conv2d, 3, 10, 10), FLAT, domain=TINY)
    with pytest.raises(NotApplicable, match="last layer of mine to be fully connected"):
        sp.attacks.rgap()(observe(last, photo(10)), rng=sp.rng(1))
    with pytest.raises(InvalidValue, match="expected damping >= 0, got -1"):
        sp.attacks.rgap(damping=-1)


def test_a_network_with_batch_normalisation_is_refused_with_what_to_use():
    with pytest.raises(NotApplicable, match=r"BatchNorm2d.*inverting_gradients"):
        sp.attacks.rgap()(observe(sp.zoo.convnet(width=4), photo(32)), rng=sp.rng(1))


def test_weights_of_zero_leave_nothing_to_walk_back_with():
    task = task_of(
        FLAT,
        make(nn.Linear, 300, 5, bias=False),
        make(nn.Tanh),
        make(nn.Linear, 5, 10),
        domain=TINY,
    )
    model = task.model
    with torch.no_grad():
        model[3].weight.zero_()
    seen = observe(sp.Task(model, sp.cross_entropy, TINY), photo(10))
    with pytest.raises(NotApplicable, match="behind '1' is zero"):
        sp.attacks.rgap()(seen, rng=sp.rng(1))
