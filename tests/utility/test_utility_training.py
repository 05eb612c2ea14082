"""Training behind a defense: the steps are those of the attacked client, taken by plain SGD."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.core import cross_entropy
from seepage.core._checkpoint import checkpointing
from seepage.core._progress import listen
from seepage.core.errors import InvalidValue
from seepage.utility import (
    CropAndFlip,
    Drops,
    OneCycle,
    Training,
    evaluate,
    noise_multiplier,
    train,
)
from seepage.utility import _per_example as local
from seepage.utility._per_example import TrackStatistics, _per_example_gradients

DEFENSES = [
    sp.chain(),
    sp.Prune(0.9),
    sp.TopK(50),
    sp.AddGaussian(0.01),
    sp.AddLaplace(0.01),
    sp.Clip(0.1),
    sp.Dropout(0.5),
    sp.Quantize(4),
    sp.Sign(),
    sp.MixUp(4),
    sp.InstaHide(4),
    sp.Oasis(),
    sp.Soteria(0.5),
    sp.Precode(8),
    sp.dp_sgd(max_norm=0.5, noise_multiplier=1.0, batch_size=16),
    sp.SecureAggregation(4),
    sp.chain(
        sp.MixUp(2), sp.ClipEach(0.5), sp.Mean(), sp.AddGaussian(0.01), sp.SecureAggregation(4)
    ),
]


@pytest.fixture(scope="module")
def digits():
    return sp.data.load("digits")


@pytest.fixture(scope="module")
def small(digits):
    """Eighty digits to learn from, twenty to be judged by, a perceptron."""
    task = sp.zoo.mlp(hidden=(12,), domain=digits.domain)
    return task, digits.batch(80), digits.batch(20, start=80)


def normalised(width=2):
    return sp.zoo.resnet20(width=width, domain=sp.domains.Image((3, 8, 8)))


def pictures(count):
    photos = sp.data.load("photos", pixels=8)
    return photos.batch(count)


def weights(task):
    return torch.cat([p.flatten() for p in task.parameters.values()])


def written_out(task, data, plan, rng):
    """Momentum SGD as a loop in double precision, over the batches that the plan deals."""
    task = task.to(dtype=torch.float64)
    data = data.to(dtype=torch.float64)
    sampler = plan.build_sampler(data.labels, rng=rng.fork("deal"))
    theta = {n: p.clone() for n, p in task.parameters.items()}
    velocity = {n: torch.zeros_like(p) for n, p in theta.items()}
    for step in range(plan.count_steps(len(data))):
        [chosen] = sampler.draw(step)
        leaves = {n: p.clone().requires_grad_() for n, p in theta.items()}
        losses = task.losses(leaves, data.inputs[chosen], data.labels[chosen])
        gradient = torch.autograd.grad(losses.mean(), list(leaves.values()))
        for (name, p), g in zip(theta.items(), gradient, strict=True):
            velocity[name] = plan.momentum * velocity[name] + g + plan.weight_decay * p
        rate = plan.lr * plan.schedule(step, plan.count_steps(len(data)))
        theta = {n: p - rate * velocity[n] for n, p in theta.items()}
    return torch.cat([p.flatten() for p in theta.values()])


def test_without_a_defense_it_is_momentum_sgd(small):
    task, data, held_out = small
    plan = Training(
        epochs=2, batch_size=24, lr=0.1, momentum=0.9, weight_decay=1e-3, schedule=OneCycle()
    )
    got = train(task, data, held_out=held_out, plan=plan, rng=sp.rng(0))
    assert torch.allclose(
        weights(got.task).double(), written_out(task, data, plan, sp.rng(0)), atol=1e-5
    )
    assert not torch.allclose(weights(got.task), weights(task), atol=1e-2), "it moved"


@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
def test_one_step_moves_by_what_the_attacked_client_shares(small, defense):
    task, data, held_out = small
    plan = Training(steps=1, batch_size=16, lr=1.0, momentum=0.0)
    got = train(task, data, held_out=held_out, plan=plan, defense=defense, rng=sp.rng(3))
    client = sp.Client(sp.Gradient(), defense)
    before = client.broadcast(task)
    [chosen] = plan.build_sampler(data.labels, rng=sp.rng(3).fork("deal")).draw(0)
    batch = sp.Batch(data.inputs[chosen], data.labels[chosen])
    shared = client(before, batch, rng=sp.rng(3).fork("clients", 0))
    moved = weights(before) - weights(got.task)
    assert torch.allclose(moved, shared.flat(), atol=1e-5)
    assert shared.norm() > 1e-3
    assert got.overhead > 0


def test_the_fast_gradient_is_that_of_the_client(small):
    data = pictures(6)
    for task in (
        normalised().in_mode("train"),
        sp.zoo.cnn(variant="cnn2-v1", domain=small[0].domain),
    ):
        batch = data if task.domain.shape[0] == 3 else small[1]
        fast = TrackStatistics(sp.Gradient(reduction="sum"), task.model)
        for layer in task.model.modules():
            layer.train("norm" in type(layer).__name__.lower())
        ours = fast(task, batch.inputs, batch.labels).flat()
        theirs = sp.Gradient(reduction="sum")(task, batch.inputs, batch.labels).flat()
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.parametrize("chunk", [512, 30])
def test_gradients_of_each_example_come_in_chunks(small, chunk, monkeypatch):
    task, data, _ = small
    monkeypatch.setattr(local, "CHUNK", chunk)
    fast = TrackStatistics(sp.Gradient(), task.model)
    ours = fast(task, data.inputs, data.labels, granularity="per_example")
    theirs = sp.Gradient()(task, data.inputs, data.labels, granularity="per_example")
    assert torch.allclose(ours.flat(), theirs.flat(), atol=1e-6)


class Twisted(nn.Module):
    """Strides, gaps, edges and a linear layer over positions, all of which windows must follow."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1))
        self.second = nn.Conv2d(4, 6, 3, stride=2, bias=False)
        self.norm = nn.GroupNorm(3, 6)
        self.over = nn.Linear(6, 5)
        self.head = nn.Linear(5, 10)

    def forward(self, inputs):
        hidden = torch.tanh(self.norm(self.second(torch.relu(self.first(inputs)))))
        return self.head(self.over(hidden.flatten(2).transpose(1, 2)).tanh().mean(1))


def test_one_backward_pass_gives_every_examples_own_gradient():
    photos = sp.data.load("photos", pixels=9).batch(5).to(dtype=torch.float64)
    task = sp.Task(Twisted().double(), cross_entropy, sp.domains.Image((3, 9, 9)))
    found = _per_example_gradients(task, photos.inputs, photos.labels)
    for i in range(5):
        alone = sp.Gradient()(task, photos.inputs[i : i + 1], photos.labels[i : i + 1])
        for name, tensor in alone.tensors.items():
            assert torch.allclose(found[name][i], tensor, atol=1e-10), name


class InPlace(nn.Module):
    def __init__(self, *, inplace):
        super().__init__()
        self.body = nn.Linear(192, 6)
        self.activation = nn.ReLU(inplace=inplace)
        self.head = nn.Linear(6, 10)

    def forward(self, inputs):
        return self.head(self.activation(self.body(inputs.flatten(1))))


@pytest.mark.parametrize("inplace", [False, True])
def test_what_is_changed_in_place_is_differentiated_apart(inplace):
    photos = pictures(3)
    task = sp.Task(InPlace(inplace=inplace), cross_entropy, sp.domains.Image((3, 8, 8)))
    assert (_per_example_gradients(task, photos.inputs, photos.labels) is None) == inplace
    fast = TrackStatistics(sp.Gradient(), task.model)
    ours = fast(task, photos.inputs, photos.labels, granularity="per_example")
    theirs = sp.Gradient()(task, photos.inputs, photos.labels, granularity="per_example")
    assert torch.allclose(ours.flat(), theirs.flat(), atol=1e-6)


def test_layers_without_a_rule_are_differentiated_apart():
    photos = pictures(3)
    task = normalised()
    assert _per_example_gradients(task, photos.inputs, photos.labels) is None


@pytest.mark.parametrize("defense", [sp.chain(), sp.Precode(4)], ids=repr)
def test_batch_normalisation_learns_and_remembers_as_torch_does(defense):
    data = pictures(12)
    plan = Training(epochs=2, batch_size=4, lr=0.05)
    got = train(normalised(), data, held_out=data, plan=plan, defense=defense, rng=sp.rng(1))
    assert {int(b) for n, b in got.task.model.named_buffers() if "tracked" in n} == {6}
    if defense != sp.chain():
        return
    task = normalised()
    model = copy.deepcopy(task.model).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = plan.build_sampler(data.labels, rng=sp.rng(1).fork("deal"))
    for step in range(6):
        [chosen] = sampler.draw(step)
        logits = model(task.domain.normalise(data.inputs[chosen]))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits, data.labels[chosen]).backward()
        optimiser.step()
    theirs = model.state_dict()
    for name, ours in got.task.model.state_dict().items():
        assert torch.allclose(ours.float(), theirs[name].float(), rtol=1e-3, atol=1e-4), name


def test_the_task_that_came_in_is_left_as_it_was(small):
    task, data, held_out = small
    before = copy.deepcopy(task.model.state_dict())
    train(task, data, held_out=held_out, plan=Training(steps=2, batch_size=8), rng=sp.rng(0))
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())


class Interrupted(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize(
    ("make", "defense"),
    [
        (normalised, sp.AddGaussian(0.01)),
        pytest.param(normalised, sp.Precode(4), marks=pytest.mark.slow),
    ],
    ids=["noise", "precode"],
)
def test_an_interrupted_training_ends_with_the_same_bits(tmp_path, make, defense):
    data = pictures(8)
    options = {
        "held_out": data,
        "plan": Training(epochs=3, batch_size=4, lr=0.05, augment=CropAndFlip(1)),
        "defense": defense,
        "rng": sp.rng(0),
    }
    whole = train(make(), data, **options)

    def stop(step, total, _):
        assert total == 6
        if step == 4:
            raise Interrupted

    with checkpointing(tmp_path, every=100):
        with pytest.raises(Interrupted), listen(stop):
            train(make(), data, **options)
        assert len(list(tmp_path.iterdir())) == 1
        began = []
        with listen(lambda step, *_: began.append(step)):
            resumed = train(make(), data, **options)
        assert not list(tmp_path.iterdir()), "nothing is left when it is done"
    assert began[0] == 3, "it went on after the first epoch"
    assert resumed.accuracy == whole.accuracy
    assert resumed.loss == whole.loss
    theirs = resumed.task.model.state_dict()
    assert all(torch.equal(v, theirs[n]) for n, v in whole.task.model.state_dict().items())


def test_another_defense_does_not_pick_up_the_checkpoint(tmp_path, small):
    task, data, held_out = small
    plan = Training(steps=4, batch_size=16)

    def stop(step, *_):
        if step == 2:
            raise Interrupted

    with checkpointing(tmp_path, every=1):
        with pytest.raises(Interrupted), listen(stop):
            train(task, data, held_out=held_out, plan=plan, defense=sp.Clip(1.0), rng=sp.rng(0))
        began = []
        with listen(lambda step, *_: began.append(step)):
            train(task, data, held_out=held_out, plan=plan, rng=sp.rng(0))
    assert began[0] == 1


@pytest.mark.slow
def test_strong_defenses_cost_accuracy_on_real_digits(data_root):
    digits, unseen = sp.data.load("mnist", split="train"), sp.data.load("mnist")
    task = sp.zoo.cnn(variant="cnn2-v2", domain=digits.domain)
    plan = Training(epochs=6, batch_size=32, lr=0.02)
    found = {}
    for defense in (sp.chain(), sp.Prune(0.9), sp.AddGaussian(10.0)):
        found[defense] = train(
            task,
            digits.batch(384),
            held_out=unseen.batch(200),
            plan=plan,
            defense=defense,
            rng=sp.rng(0),
        )
    plain, pruned, noisy = found.values()
    assert plain.accuracy[-1] > 0.7
    assert 0.4 < pruned.accuracy[-1] < plain.accuracy[-1] + 0.05
    assert noisy.accuracy[-1] < 0.3
    assert plain.training_loss < plain.loss[0]
    assert (plain.evaluated, plain.overhead) == ((12, 24, 36, 48, 60, 72), 1.0)


def test_the_account_is_that_of_opacus(small):
    accountants = pytest.importorskip("opacus.accountants", reason="needs the extra dp")
    task, data, held_out = small
    plan = Training(epochs=2, batch_size=20, sampling="poisson", lr=0.05)
    defense = sp.chain(sp.dp_sgd(max_norm=0.5, noise_multiplier=1.3, batch_size=20), sp.Prune(0.1))
    got = train(task, data, held_out=held_out, plan=plan, defense=defense, rng=sp.rng(0))
    account = accountants.RDPAccountant()
    account.history = [(1.3, 20 / 80, 8)]
    assert got.epsilon == pytest.approx(account.get_epsilon(1e-5))
    shuffled = Training(epochs=1, batch_size=20, lr=0.05)
    unaccounted = train(
        task, data, held_out=held_out, plan=shuffled, defense=defense, rng=sp.rng(0)
    )
    assert unaccounted.epsilon is None


def test_no_account_covers_data_that_was_mixed_or_a_mean_over_whoever_came():
    clipped = sp.chain(sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(1.0))
    mixed = sp.chain(sp.MixUp(2), sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=4))
    assert noise_multiplier(clipped) is None
    assert noise_multiplier(mixed) is None


def test_poisson_batches_have_the_expected_size_on_average():
    sampler = Training(steps=1, batch_size=16, sampling="poisson").build_sampler(
        torch.zeros(64), rng=sp.rng(0)
    )
    sizes = torch.tensor([float(len(sampler.draw(step)[0])) for step in range(400)])
    assert abs(sizes.mean() - 16) < 5 * (12 / 400) ** 0.5
    assert abs(sizes.var() - 12) < 3


def test_an_epoch_meets_everybody_at_most_once_and_in_a_new_order():
    sampler = Training(epochs=2, batch_size=3).build_sampler(torch.zeros(11), rng=sp.rng(0))
    first = torch.cat([sampler.draw(step)[0] for step in range(3)])
    second = torch.cat([sampler.draw(step)[0] for step in range(3, 6)])
    assert len(set(first.tolist())) == len(set(second.tolist())) == 9
    assert not torch.equal(first, second)


def test_crops_are_slices_of_the_padded_image(digits):
    images = digits.inputs[:6]
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    got = CropAndFlip(2)(images, rng=sp.rng(0))
    seen = set()
    for image, mine in zip(padded, got, strict=True):
        slices = {
            (row, column, mirrored): image[:, row : row + 28, column : column + 28].flip(
                (-1,) if mirrored else ()
            )
            for row in range(5)
            for column in range(5)
            for mirrored in (False, True)
        }
        found = [key for key, slice_ in slices.items() if torch.equal(slice_, mine)]
        assert found
        seen.add(found[0])
    assert len(seen) > 1


def test_learning_rates_follow_their_schedule():
    cycle = [OneCycle(0.25)(step, 100) for step in range(100)]
    assert max(cycle) == cycle[24] == 1.0
    assert cycle[:25] == sorted(cycle[:25])
    assert cycle[24:] == sorted(cycle[24:], reverse=True)
    assert 0 < cycle[-1] < 0.02
    assert min(cycle) > 0
    assert [Drops(at=(0.5,), factor=0.2)(step, 4) for step in range(4)] == [1, 1, 0.2, 0.2]


def test_evaluation_uses_running_statistics_and_every_example():
    task, data = normalised(), pictures(7)
    quality = evaluate(task.in_mode("train"), data)
    with torch.no_grad():
        logits = copy.deepcopy(task.model).eval()(task.domain.normalise(data.inputs))
    loss = torch.nn.functional.cross_entropy(logits, data.labels)
    assert quality.loss == pytest.approx(loss.item(), rel=1e-5)
    assert quality.accuracy == pytest.approx(
        float((logits.argmax(1) == data.labels).float().mean())
    )


def test_a_network_taught_by_instahide_is_asked_with_flipped_signs(small):
    task, data, held_out = small
    plan = Training(epochs=2, batch_size=16, lr=0.05)
    got = train(task, data, held_out=held_out, plan=plan, defense=sp.InstaHide(2), rng=sp.rng(0))
    flips = sp.rng(0).fork("clients", "evaluation", 0)
    total = 0.0
    for version in range(10):
        coins = flips.fork(version).uniform(held_out.inputs.shape)
        signs = torch.where(coins < 0.5, -1.0, 1.0)
        total = total + got.task.outputs(got.task.parameters, 0.5 + signs * (held_out.inputs - 0.5))
    loss = sp.cross_entropy(total / 10, held_out.labels).mean()
    assert got.loss[-1] == pytest.approx(float(loss), rel=1e-4)
    assert got.loss[-1] != pytest.approx(evaluate(got.task, held_out).loss, rel=2e-3)


def test_a_result_is_plain_data(small):
    task, data, held_out = small
    plan = Training(steps=2, batch_size=8, lr=0.1)
    got = train(task, data, held_out=held_out, plan=plan, rng=sp.rng(0))
    assert got.plain()["loss"] == list(got.loss)
    assert replace(got, loss=(math.inf,)).plain()["loss"] == [None]
    assert "task" not in got.plain()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 2, "epochs": 2}, "got steps=2, epochs=2"),
        ({}, "got steps=None, epochs=None"),
        ({"epochs": 0}, "expected epochs >= 1, got 0"),
        ({"epochs": 1, "batch_size": 0}, "expected batch_size >= 1, got 0"),
        ({"epochs": 1, "lr": -0.1}, "expected lr > 0, got -0.1"),
        ({"epochs": 1, "momentum": 1.0}, r"expected momentum in \[0, 1\), got 1.0"),
        ({"epochs": 1, "sampling": "bootstrap"}, "got 'bootstrap'"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(options, said):
    with pytest.raises(InvalidValue, match=said):
        Training(**options)


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        (sp.MixUp(9), "at least k = 9 inputs to mix, got 8"),
        (sp.SecureAggregation(9), "among 9 clients, but it has only 8"),
        (sp.chain(sp.MixUp(5), sp.SecureAggregation(2)), "at least k = 5 inputs to mix, got 4"),
    ],
    ids=repr,
)
def test_a_defense_that_needs_more_than_a_batch_is_refused_before_the_first_step(
    small, defense, said
):
    task, data, held_out = small
    plan = Training(steps=1, batch_size=8)
    with (
        pytest.raises(InvalidValue, match=said),
        listen(lambda *_: pytest.fail("a step was taken")),
    ):
        train(task, data, held_out=held_out, plan=plan, defense=defense, rng=sp.rng(0))


def test_a_batch_larger_than_the_data_is_refused(small):
    task, data, held_out = small
    with pytest.raises(InvalidValue, match="at least batch_size = 81 examples to train on, got 80"):
        train(task, data, held_out=held_out, plan=Training(steps=1, batch_size=81), rng=sp.rng(0))


def test_clipping_each_example_is_refused_where_normalisation_mixes_them():
    defense = sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=4)
    data = pictures(8)
    plan = Training(steps=1, batch_size=4)
    with pytest.raises(InvalidValue, match="do not exist while batch normalisation mixes"):
        train(normalised(), data, held_out=data, plan=plan, defense=defense, rng=sp.rng(0))


def test_an_unknown_precision_is_refused(small):
    task, data, held_out = small
    with pytest.raises(InvalidValue, match="got 'fp8'"):
        train(
            task,
            data,
            held_out=held_out,
            plan=Training(steps=1),
            precision="fp8",
            rng=sp.rng(0),
        )


def test_nothing_is_rounded_on_a_cpu(small):
    task, data, held_out = small
    plan = Training(steps=3, batch_size=16)
    exact, rounded = (
        train(task, data, held_out=held_out, plan=plan, precision=precision, rng=sp.rng(0))
        for precision in ("float32", "bf16")
    )
    assert torch.equal(weights(exact.task), weights(rounded.task))


def test_the_last_accuracy_is_that_of_the_network_it_leaves(digits):
    """Running statistics move at every step, and so does what is judged."""
    seen, unseen = digits.batch(80), digits.batch(20, start=80)
    task = sp.zoo.resnet20(width=4, domain=digits.domain)
    done = train(
        task, seen, held_out=unseen, plan=Training(epochs=3, batch_size=16, lr=0.1), rng=sp.rng(0)
    )
    assert done.loss[-1] == pytest.approx(evaluate(done.task, unseen).loss, rel=1e-6)
    assert len(set(done.loss)) == 3
