"""Several rounds joined into one observation."""

import copy
from dataclasses import replace

import pytest
import torch

import seepage as sp
from seepage.attacks import stack_rounds
from seepage.core.errors import InvalidValue

PHOTO = sp.data.bundled("photos", size=1)


def moved(task, step):
    """The network of the next round."""
    model = copy.deepcopy(task.model)
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return replace(task, model=model)


def see(client, tasks, batch=PHOTO, **known):
    threat = sp.Threat(**{"knows_labels": True, **known})
    return [threat.observe(client, t, batch, rng=sp.rng(i)) for i, t in enumerate(tasks)]


@pytest.fixture
def tasks():
    task = sp.zoo.lenet(seed=2)
    return [task, moved(task, 1), moved(task, 2)]


@pytest.mark.parametrize(
    "client",
    [
        sp.Client(sp.Gradient()),
        sp.Client(sp.Gradient(), sp.Clip(0.1)),
        sp.Client(sp.Gradient(), sp.Prune(0.9)),
        sp.Client(sp.FedAvg(steps=3, lr=0.05)),
        sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=0.1, noise_multiplier=0.0, batch_size=1)),
    ],
    ids=["plain", "clipped", "pruned", "fedavg", "clipped each"],
)
def test_the_truth_explains_every_round_behind_its_own_defense(tasks, client):
    rounds = see(client, tasks)
    seen = stack_rounds(rounds)
    simulated = seen.simulate(PHOTO.inputs, PHOTO.labels)
    assert list(simulated.tensors) == list(seen.update.tensors)
    difference = (simulated.flat() - seen.update.flat()).norm()
    assert difference <= 1e-5 * seen.update.norm()
    apart = torch.cat([one.update.flat() for one in rounds])
    assert torch.equal(seen.update.flat(), apart)


def test_noise_that_hides_a_person_once_does_not_in_many_rounds():
    task = sp.zoo.mlp(hidden=(64,), activation="tanh", seed=0)
    client = sp.Client(sp.Gradient(), sp.AddGaussian(0.3))
    rounds = see(client, [task] * 25)
    attack = sp.attacks.inverting_gradients(steps=300, restarts=1, tv=0.0)
    once, often = (
        float(sp.score(attack(stack_rounds(some), rng=sp.rng(0)), PHOTO)["psnr"])
        for some in (rounds[:1], rounds)
    )
    assert often > once + 6


def test_labels_come_from_any_round_or_are_recovered(tasks):
    batch = sp.data.bundled("photos", size=2)
    hidden = see(sp.Client(sp.Gradient()), tasks, batch, knows_labels=False)
    assert stack_rounds(hidden).labels.tolist() == sorted(batch.labels.tolist())
    one_told = [*hidden[:2], *see(sp.Client(sp.Gradient()), tasks[2:], batch)]
    assert stack_rounds(one_told).labels.tolist() == sorted(batch.labels.tolist())


def test_statistics_of_every_round_are_kept():
    task = sp.zoo.resnet20(width=4)
    known = {"knows_labels": True, "batchnorm": "exact"}
    batch = sp.data.bundled("photos", size=2)
    rounds = see(sp.Client(sp.Gradient()), [task, moved(task, 1)], batch, **known)
    seen = stack_rounds(rounds)
    assert len(seen.statistics) == 2 * len(rounds[0].statistics)
    guess = sp.attacks.gradattack_strongest(steps=2)(seen, rng=sp.rng(0))
    assert guess.inputs.shape == batch.inputs.shape


def test_what_does_not_belong_together_is_refused_in_a_sentence(tasks):
    client = sp.Client(sp.Gradient())
    rounds = see(client, tasks)
    with pytest.raises(InvalidValue, match="at least one observation"):
        stack_rounds([])
    with pytest.raises(InvalidValue, match="rounds of one model, but the update of observation 2"):
        stack_rounds([rounds[0], *see(client, [sp.zoo.mlp()])])
    with pytest.raises(InvalidValue, match="rounds of one batch, but observation 4"):
        stack_rounds([*rounds, *see(client, tasks[:1], sp.data.bundled("photos", size=2))])
