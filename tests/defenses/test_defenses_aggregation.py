"""Secure aggregation: the weights are right, and only the combination is seen."""

from itertools import pairwise

import pytest
import torch

import seepage as sp
from seepage.core.errors import InvalidValue

TASK = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((1, 4, 4)))


def crowd(size: int) -> sp.Batch:
    inputs = sp.rng(0).uniform((size, 1, 4, 4))
    return sp.Batch(inputs, torch.arange(size).remainder(10))


def naive_sum(local, batch, clients, *, average) -> torch.Tensor:
    """Every client's own update, weighed and added up in double precision, one by one."""
    edges = [0]
    for client in range(clients):
        edges.append(edges[-1] + len(batch) // clients + (client < len(batch) % clients))
    total = 0.0
    for start, stop in pairwise(edges):
        own = local(TASK, batch.inputs[start:stop], batch.labels[start:stop])
        weight = (stop - start) / len(batch) if average else 1.0
        total = total + weight * own.flat().double()
    return total


@pytest.mark.parametrize("clients", [2, 10, 100])
@pytest.mark.parametrize(
    ("local", "average"),
    [(sp.Gradient(), True), (sp.Gradient(), False), (sp.FedAvg(lr=0.1, steps=2), True)],
    ids=repr,
)
def test_the_server_sees_the_weighted_sum_over_all_clients(local, clients, average):
    batch = crowd(3 * clients + 1)  # so that one client holds more than the others
    client = sp.Client(local, sp.SecureAggregation(clients, average=average))
    seen = client(TASK, batch, rng=sp.rng(0))
    naive = naive_sum(local, batch, clients, average=average)
    assert torch.allclose(seen.flat().double(), naive, atol=1e-6, rtol=0)
    assert seen.kind == ("gradient" if local == sp.Gradient() else "difference")


@pytest.mark.parametrize("clients", [1, 2, 10, 100])
def test_for_one_gradient_step_a_cohort_is_a_larger_batch(clients):
    batch = crowd(107)
    cohort = sp.Client(sp.Gradient(), sp.SecureAggregation(clients))
    alone = sp.Client(sp.Gradient())
    together = cohort(TASK, batch, rng=sp.rng(0)).flat()
    assert torch.allclose(together, alone(TASK, batch, rng=sp.rng(0)).flat(), atol=1e-6)


def test_every_client_defends_its_own_update_before_the_sum():
    batch = crowd(6)
    client = sp.Client(sp.Gradient(), sp.chain(sp.Clip(0.1), sp.SecureAggregation(3)))
    naive = torch.zeros(())
    for start in (0, 2, 4):
        own = sp.Gradient()(TASK, batch.inputs[start : start + 2], batch.labels[start : start + 2])
        naive = naive + sp.Clip(0.1).expected(own).flat() / 3
    assert torch.allclose(client(TASK, batch, rng=sp.rng(0)).flat(), naive, atol=1e-7)
    # Clipping the sum of two clients that disagree would give another norm.
    assert float(naive.norm()) < 0.1


def test_clients_draw_their_noise_apart():
    noisy = sp.Client(sp.Gradient(), sp.chain(sp.AddGaussian(1.0), sp.SecureAggregation(4)))
    plain = sp.Client(sp.Gradient(), sp.SecureAggregation(4))
    batch = crowd(8)
    noise = torch.stack(
        [
            noisy(TASK, batch, rng=sp.rng(s)).flat() - plain(TASK, batch, rng=sp.rng(s)).flat()
            for s in range(20)
        ]
    )
    assert abs(float(noise.std()) - 0.5) < 0.02  # sqrt(4) / 4


def test_the_simulation_of_a_cohort_at_the_truth_is_what_was_seen():
    batch = crowd(10)
    order = batch.labels.argsort(stable=True)
    batch = sp.Batch(batch.inputs[order], batch.labels[order])
    defense = sp.chain(sp.MixUp(3), sp.Prune(0.5), sp.SecureAggregation(2))
    seen = sp.Threat(knows_labels=True, knows_mixing=True).observe(
        sp.Client(sp.FedAvg(lr=0.1, steps=2), defense), TASK, batch, rng=sp.rng(0)
    )
    assert not seen.mixing.coefficients[:5, 5:].any()  # nobody mixes with another client's data
    simulated = seen.simulate(batch.inputs, seen.labels)
    assert torch.allclose(simulated.flat(), seen.update.flat(), atol=1e-6)


def test_two_clients_of_one_photo_each_still_leak():
    data = sp.data.load("photos", pixels=16)
    batch = data.batch(2)
    task = sp.zoo.build("cnn2-v1", options={"domain": data.domain})
    client = sp.Client(sp.Gradient(), sp.SecureAggregation(2))
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    guess = sp.attacks.inverting_gradients(steps=250, restarts=1, tv=1e-4)(seen, rng=sp.rng(1))
    assert sp.score(guess, batch)["psnr"].min() > 30


def test_impossible_cohorts_are_refused():
    with pytest.raises(InvalidValue, match="clients >= 1, got 0"):
        sp.SecureAggregation(0)
    client = sp.Client(sp.Gradient(), sp.SecureAggregation(5))
    with pytest.raises(InvalidValue, match="among 5 clients, but it has only 4"):
        client(TASK, crowd(4), rng=sp.rng(0))
    with pytest.raises(InvalidValue, match=r"Clip\(1.0\) cannot come after SecureAggregation\(2\)"):
        sp.chain(sp.SecureAggregation(2), sp.Clip(1.0))
    with pytest.raises(InvalidValue, match=r"aggregate several clients .once."):
        sp.chain(sp.SecureAggregation(2), sp.SecureAggregation(2))


def test_no_server_knows_the_batch_statistics_of_a_client_in_a_cohort(photos):
    client = sp.Client(sp.Gradient(), sp.SecureAggregation(2))
    with pytest.raises(InvalidValue, match="aggregates 2; use 'running' or 'unknown'"):
        sp.Threat.strongest().observe(client, sp.zoo.convnet(width=2), photos, rng=sp.rng(0))
