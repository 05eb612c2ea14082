"""What a network is sure of: small gradients tell as much, once the last layer is read."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks._agreement import residual
from seepage.attacks.labels import ReadLogits
from seepage.attacks.labels._read_logits import _read_logits
from seepage.core.errors import NotApplicable

SEARCH = sp.attacks.inverting_gradients(steps=120, restarts=1, tv=1e-4)


@pytest.fixture(scope="module")
def data():
    return sp.data.load("photos", pixels=16)


def sure(data, gain, people=1, start=0):
    """A network with so large a last layer that it is sure, and people it is right about."""
    task = sp.zoo.lenet(domain=data.domain)
    model = copy.deepcopy(task.model)
    with torch.no_grad():
        model.head.weight.mul_(gain)
        model.head.bias.mul_(gain)
    task, inputs = replace(task, model=model), data.batch(people, start=start).inputs
    with torch.no_grad():
        return task, sp.Batch(inputs, task.outputs(task.parameters, inputs).argmax(1))


def seen_by(threat, task, batch, *, defense=None, local=None):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return threat.observe(client, task, batch, rng=sp.rng(0))


def psnr(attack, seen, batch):
    return float(sp.score(attack(seen, rng=sp.rng(1)), batch)["psnr"].mean())


@pytest.mark.parametrize("gain", [1, 100, 300])
def test_at_the_truth_the_read_simulation_gives_the_observed_update(data, gain):
    task, batch = sure(data, gain)
    read = _read_logits(seen_by(sp.Threat(knows_labels=True), task, batch))
    assert residual(read, batch.inputs, read.labels) < 1e-5


@pytest.mark.slow
def test_an_image_that_a_network_is_sure_of_comes_back_once_the_last_layer_is_read(data):
    task, batch = sure(data, 100)
    seen = seen_by(sp.Threat(knows_labels=True), task, batch)
    assert psnr(ReadLogits(SEARCH), seen, batch) > psnr(SEARCH, seen, batch) + 1


@pytest.mark.slow
def test_so_does_one_whose_gradient_has_no_norm_in_single_precision(data):
    task, batch = sure(data, 1000)
    seen = seen_by(sp.Threat(knows_labels=True), task, batch)
    with pytest.raises(NotApplicable, match=r"norm is zero in this precision.*ReadLogits"):
        SEARCH(seen, rng=sp.rng(1))
    untrained, known = sure(data, 1)
    plain = psnr(SEARCH, seen_by(sp.Threat(knows_labels=True), untrained, known), known)
    assert psnr(ReadLogits(SEARCH), seen, batch) > plain - 1


def test_an_unknown_label_is_read_too_unless_rounding_took_it(data):
    short = ReadLogits(sp.attacks.inverting_gradients(steps=2, restarts=1))
    task, batch = sure(data, 10, start=2)
    assert torch.equal(short(seen_by(sp.Threat(), task, batch), rng=sp.rng(1)).labels, batch.labels)
    task, batch = sure(data, 300)
    assert short(seen_by(sp.Threat(), task, batch), rng=sp.rng(1)).labels is None


def test_several_are_attacked_side_by_side_as_they_are_one_by_one(data):
    short = ReadLogits(sp.attacks.inverting_gradients(steps=4, restarts=2))
    task, _ = sure(data, 100)
    task = task.to(dtype=torch.float64)
    batches = [sure(data, 100, start=i)[1].to(dtype=torch.float64) for i in range(3)]
    seen = [seen_by(sp.Threat(knows_labels=True), task, batch) for batch in batches]
    keys = [sp.rng(i) for i in range(3)]
    for one, key, guess in zip(seen, keys, short.many(seen, rngs=keys), strict=True):
        alone = short(one, rng=key)
        assert torch.allclose(alone.inputs, guess.inputs, atol=1e-7)
        assert torch.equal(guess.labels, one.labels)


@pytest.mark.parametrize(
    ("people", "options"),
    [
        (2, {}),
        (1, {"defense": sp.Prune(0.5)}),
        (1, {"local": sp.FedAvg(lr=0.01, steps=2)}),
    ],
    ids=["batch", "defended", "local steps"],
)
def test_what_does_not_show_the_logits_is_attacked_as_it_is(data, people, options):
    task, batch = sure(data, 1, people)
    seen = seen_by(sp.Threat(knows_labels=True), task, batch, **options)
    short = sp.attacks.inverting_gradients(steps=2, restarts=1)
    plain, read = (attack(seen, rng=sp.rng(1)).inputs for attack in (short, ReadLogits(short)))
    assert torch.equal(plain, read)


def test_of_several_only_those_that_show_nothing_are_attacked_as_they_are(data):
    search = sp.attacks.inverting_gradients(steps=4, restarts=1)
    task, _ = sure(data, 100)
    task = task.to(dtype=torch.float64)
    batches = [sure(data, 100, start=i)[1].to(dtype=torch.float64) for i in range(3)]
    seen = [seen_by(sp.Threat(knows_labels=True), task, batch) for batch in batches]
    silent = {**seen[1].update.tensors, "head.bias": torch.zeros(10, dtype=torch.float64)}
    seen[1] = replace(seen[1], update=replace(seen[1].update, tensors=silent))
    keys = [sp.rng(i) for i in range(3)]
    found = ReadLogits(search).many(seen, rngs=keys)
    for i, attack in enumerate((ReadLogits(search), search, ReadLogits(search))):
        assert torch.allclose(attack(seen[i], rng=keys[i]).inputs, found[i].inputs, atol=1e-7)
        assert torch.equal(found[i].labels, seen[i].labels)
    plain = search(seen[0], rng=keys[0]).inputs
    assert not torch.allclose(plain, found[0].inputs, atol=1e-3)


class Twice(nn.Module):
    """A network whose last layer has run before."""

    def __init__(self, entries):
        super().__init__()
        self.body, self.head = nn.Linear(entries, 10), nn.Linear(10, 10)

    def forward(self, x):
        return self.head(self.head(self.body(x.flatten(1))).tanh())


def test_a_last_layer_that_runs_twice_does_not_show_the_logits(data):
    task, batch = sure(data, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        task = replace(task, model=Twice(batch.inputs[0].numel()))
    seen = seen_by(sp.Threat(knows_labels=True), task, batch)
    probabilities = task.outputs(task.parameters, batch.inputs).softmax(1)
    at_logits = probabilities - torch.nn.functional.one_hot(batch.labels, 10)
    assert not torch.allclose(seen.update.tensors["head.bias"], at_logits[0], atol=1e-3)
    assert _read_logits(seen) is None
