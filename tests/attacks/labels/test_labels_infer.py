"""Attacks that need labels work without them, and batch sizes are told or not told honestly."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.labels import InferLabels, SignRule, estimate_batch_size
from seepage.core import Attack
from seepage.core.errors import MissingKnowledge
from seepage.domains import Signal


def observe(task, batch, *, local=None, defense=None, **knowledge):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat(**knowledge).observe(client, task, batch, rng=sp.rng(0))


def linear_task(*, scale=1.0, bias=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 10, bias=bias))
    with torch.no_grad():
        model[1].weight.mul_(scale)
    return sp.Task(model, sp.cross_entropy, Signal((1, 24)), name="linear")


def noise_batch(task, labels):
    return sp.Batch(task.domain.sample(len(labels), rng=sp.rng(0)), torch.tensor(labels))


def test_matching_without_labels_is_matching_with_them_where_they_are_right(photos):
    attack = sp.attacks.inverting_gradients(steps=2, restarts=1)
    task = sp.zoo.mlp(hidden=(16,))
    known = attack(observe(task, photos, knows_labels=True), rng=sp.rng(1))
    inferred = InferLabels(attack)(observe(task, photos), rng=sp.rng(1))
    assert torch.equal(inferred.labels, known.labels)
    assert torch.equal(inferred.inputs, known.inputs)


def test_the_closed_form_is_certified_without_a_known_label(photos):
    person = sp.Batch(photos.inputs[:1], photos.labels[:1])
    seen = observe(sp.zoo.mlp(hidden=(32,)), person)
    guess = InferLabels(sp.attacks.analytic_fc())(seen, rng=sp.rng(1))
    assert guess.certificate.unique
    assert guess.labels.tolist() == person.labels.tolist()


def test_known_labels_are_not_inferred_again(photos):
    def refuse(observation):
        raise AssertionError("the rule was asked")

    attack = sp.attacks.analytic_fc()
    seen = observe(sp.zoo.mlp(hidden=(16,)), photos, knows_labels=True)
    guess = InferLabels(attack, rule=refuse)(seen, rng=sp.rng(1))
    assert torch.equal(guess.inputs, attack(seen, rng=sp.rng(1)).inputs)


def test_it_is_an_attack_with_a_rule_of_choice():
    wrapped = InferLabels(sp.attacks.analytic_fc(), rule=SignRule())
    assert isinstance(wrapped, Attack)
    assert repr(wrapped) == "InferLabels(attack=AnalyticFC(), rule=SignRule())"


def test_an_unknown_batch_size_is_inferred_too(photos):
    attack = sp.attacks.inverting_gradients(steps=2, restarts=1)
    seen = observe(sp.zoo.mlp(hidden=(16,)), photos, knows_batch_size=False)
    guess = InferLabels(attack)(seen, rng=sp.rng(1))
    assert torch.equal(guess.labels, photos.labels.sort().values)


def test_a_batch_size_that_cannot_be_told_is_asked_for(photos):
    task = sp.zoo.mlp(hidden=(16,), bias=False)
    seen = observe(task, photos, knows_batch_size=False)
    with pytest.raises(MissingKnowledge, match="needs the batch size"):
        InferLabels(sp.attacks.analytic_fc())(seen, rng=sp.rng(1))


@pytest.mark.parametrize("labels", [[3], [0, 1], [0, 0, 1, 1], [7] * 3, [1, 2, 2, 5, 9]], ids=str)
@pytest.mark.parametrize("local", [sp.Gradient(), sp.FedAvg(lr=0.01, steps=1)], ids=str)
def test_shares_of_the_classes_tell_the_size(labels, local):
    task = linear_task(scale=0.2)
    assert estimate_batch_size(observe(task, noise_batch(task, labels), local=local)) == len(labels)


def test_more_people_than_classes_are_told_apart_too():
    task = linear_task(scale=0.02)
    labels = [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert estimate_batch_size(observe(task, noise_batch(task, labels))) == 13


@pytest.mark.parametrize("labels", [[4], [0, 6], [2, 2, 8]], ids=str)
def test_a_confident_network_tells_the_size_by_being_solved(labels):
    task = linear_task(scale=30.0)
    assert estimate_batch_size(observe(task, noise_batch(task, labels))) == len(labels)


@pytest.mark.parametrize("seed", range(3))
def test_noise_leaves_the_size_untold_or_right(photos, seed):
    task = sp.zoo.mlp(hidden=(16,))
    client = sp.Client(sp.Gradient(), sp.AddGaussian(0.02))
    seen = sp.Threat().observe(client, task, photos, rng=sp.rng(seed))
    assert estimate_batch_size(seen) in (None, 4)


def test_a_known_size_is_not_used_to_tell_it():
    task = linear_task(scale=0.2)
    seen = observe(task, noise_batch(task, [0, 0, 1]))
    assert estimate_batch_size(replace(seen, batch_size=50)) == 3
