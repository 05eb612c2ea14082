"""Federations: rounds of clients, whose combined update is what the server learns from."""

import pytest
import torch

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.utility import Dirichlet, Federated, train
from seepage.utility._training_plan import _split_examples


@pytest.fixture(scope="module")
def small():
    digits = sp.data.load("digits")
    task = sp.zoo.mlp(hidden=(12,), domain=digits.domain)
    return task, digits.batch(60), digits.batch(20, start=80)


def weights(task):
    return torch.cat([p.flatten() for p in task.parameters.values()])


def run(small, plan, defense=None):
    task, data, held_out = small
    return train(task, data, held_out=held_out, plan=plan, defense=defense, rng=sp.rng(0))


def test_one_round_of_federated_averaging_is_the_weighted_mean_of_local_models(small):
    task, data, _ = small
    local = sp.FedAvg(lr=0.1, epochs=2, local_batch_size=5)
    plan = Federated(clients=7, rounds=1, local=local)
    got = weights(run(small, plan).task)
    cohort = plan.build_sampler(data.labels, rng=sp.rng(0).fork("deal")).draw(0)
    assert sorted(map(len, cohort)) == [8, 8, 8, 9, 9, 9, 9]
    mean = torch.zeros_like(got)
    for indices in cohort:
        theta = {n: p.clone().requires_grad_() for n, p in task.parameters.items()}
        descent = torch.optim.SGD(theta.values(), lr=0.1)
        for _ in range(2):
            for part in indices.split(5):
                descent.zero_grad()
                task.losses(theta, data.inputs[part], data.labels[part]).mean().backward()
                descent.step()
        flat = torch.cat([p.detach().flatten() for p in theta.values()])
        mean += len(indices) / len(data) * flat
    assert torch.allclose(got, mean, atol=1e-5)


def test_gradients_of_all_clients_are_the_gradient_of_all_data(small):
    task, data, _ = small
    plan = Federated(clients=4, rounds=1, lr=0.3, split=Dirichlet(0.5))
    gradient = sp.Gradient()(task, data.inputs, data.labels).flat()
    moved = weights(task) - weights(run(small, plan).task)
    assert torch.allclose(moved, 0.3 * gradient, atol=1e-6)


def test_secure_aggregation_learns_what_an_open_federation_learns(small):
    plan = Federated(clients=6, sampled=3, rounds=3, lr=0.2)
    hidden, seen = (run(small, plan, d) for d in (sp.SecureAggregation(3), sp.chain()))
    assert torch.equal(weights(hidden.task), weights(seen.task))


def test_every_client_defends_its_own_update(small):
    task, data, _ = small
    plan = Federated(clients=3, rounds=1, lr=1.0)
    got = weights(run(small, plan, sp.Clip(0.01)).task)
    cohort = plan.build_sampler(data.labels, rng=sp.rng(0).fork("deal")).draw(0)
    clipped = []
    for indices in cohort:
        g = sp.Gradient()(task, data.inputs[indices], data.labels[indices]).flat()
        clipped.append(len(indices) / len(data) * g * 0.01 / g.norm())
    assert torch.allclose(weights(task) - got, sum(clipped), atol=1e-6)


def test_clients_draw_their_noise_apart(small):
    task, data, _ = small
    plan = Federated(clients=4, rounds=1, lr=1.0)
    moved = weights(task) - weights(run(small, plan, sp.AddGaussian(1.0)).task)
    noise = moved - sp.Gradient()(task, data.inputs, data.labels).flat()
    assert noise.std() == pytest.approx(0.5, rel=0.05), "of four clients, half of one's"


def test_rounds_draw_clients_and_examples_anew(small):
    _, data, _ = small
    sampler = Federated(clients=6, sampled=2, rounds=9, batch_size=3).build_sampler(
        data.labels, rng=sp.rng(0)
    )
    rounds = [sampler.draw(step) for step in range(9)]
    assert all([len(part) for part in cohort] == [3, 3] for cohort in rounds)
    assert len({tuple(torch.cat(cohort).tolist()) for cohort in rounds}) == 9
    assert sampler.smallest == 3


def test_a_federation_of_different_clients_learns_digits(small):
    plan = Federated(
        clients=5,
        rounds=8,
        local=sp.FedAvg(lr=0.1, epochs=1, local_batch_size=4),
        split=Dirichlet(1.0),
    )
    got = run(small, plan)
    assert got.accuracy[-1] > 0.4
    assert got.training_loss < got.loss[0]
    assert len(got.accuracy) == 8


def test_local_steps_keep_the_statistics_of_batch_normalisation():
    photos = sp.data.load("photos", pixels=8)
    task = sp.zoo.resnet20(width=2, domain=photos.domain)
    plan = Federated(clients=2, rounds=2, local=sp.FedAvg(lr=0.01, steps=2))
    got = train(task, photos.batch(8), held_out=photos.batch(8), plan=plan, rng=sp.rng(0))
    tracked = [int(b) for n, b in got.task.model.named_buffers() if "tracked" in n]
    assert set(tracked) == {4}
    assert float(got.task.model.bn1.running_mean.abs().max()) > 0


@pytest.mark.parametrize("split", ["iid", Dirichlet(0.1), Dirichlet(100.0)], ids=repr)
def test_every_example_is_dealt_once_and_nobody_is_left_out(split):
    labels = torch.arange(400) % 4
    dealt = _split_examples(labels, clients=8, split=split, rng=sp.rng(0))
    assert sorted(torch.cat(dealt).tolist()) == list(range(400))
    assert min(map(len, dealt)) >= 1


def test_a_small_alpha_leaves_a_class_to_few_clients():
    labels = torch.arange(1000) % 10

    def largest_share(split):
        dealt = _split_examples(labels, clients=10, split=split, rng=sp.rng(0))
        counts = torch.stack([torch.bincount(labels[s], minlength=10) for s in dealt]).double()
        return float((counts.max(0).values / counts.sum(0)).mean())

    assert largest_share(Dirichlet(0.1)) > 0.5
    assert largest_share(Dirichlet(100.0)) < 0.2
    assert largest_share("iid") < 0.25


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clients": 0, "rounds": 1}, "expected clients >= 1, got 0"),
        ({"clients": 2, "rounds": 0}, "expected rounds >= 1, got 0"),
        ({"clients": 2, "rounds": 1, "sampled": 3}, "expected sampled <= clients = 2, got 3"),
        ({"clients": 2, "rounds": 1, "split": "by class"}, "got 'by class'"),
        ({"clients": 2, "rounds": 1, "batch_size": -1}, "expected batch_size >= 1, got -1"),
        ({"clients": 2, "rounds": 1, "lr": 0.0}, "expected lr > 0, got 0.0"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(options, said):
    with pytest.raises(InvalidValue, match=said):
        Federated(**options)


def test_a_concentration_must_be_positive():
    with pytest.raises(InvalidValue, match="expected alpha > 0, got 0"):
        Dirichlet(0)


@pytest.mark.parametrize(
    ("plan", "defense", "said"),
    [
        (Federated(clients=61, rounds=1), None, "each of the 61 clients, got 60 examples"),
        (
            Federated(clients=40, rounds=1, split=Dirichlet(0.001)),
            None,
            r"Dirichlet\(alpha=0.001\) to leave every one of 40 clients an example",
        ),
        (Federated(clients=20, rounds=1), sp.MixUp(4), "at least k = 4 inputs to mix, got 3"),
        (Federated(clients=4, rounds=1), sp.SecureAggregation(3), "hides 3 clients, but 4 take"),
        (
            Federated(clients=4, rounds=1, local=sp.FedAvg(lr=0.1, steps=1)),
            sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=4),
            "takes per_example updates",
        ),
    ],
)
def test_what_the_data_cannot_carry_is_refused(small, plan, defense, said):
    with pytest.raises(InvalidValue, match=said):
        run(small, plan, defense)
