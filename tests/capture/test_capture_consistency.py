"""Gradients, differences and weights are told apart by their numbers."""

import pytest
import torch

import seepage as sp
from seepage.capture import Capture, Setting, consistency

LR = 0.05
FORMS = ("gradient", "difference", "weights_after")


@pytest.fixture(scope="module", params=["lenet", "mlp"])
def task(request):
    return getattr(sp.zoo, request.param)(domain=sp.data.load("photos").domain)


def forms(task, size=1, start=0):
    batch = sp.data.load("photos").batch(size, start=start)
    gradient = sp.Client(sp.Gradient())(task, batch, rng=sp.rng(0)).tensors
    moved = sp.Client(sp.FedAvg(lr=LR, steps=1))(task, batch, rng=sp.rng(0)).tensors
    after = {n: task.parameters[n] + moved[n] for n in moved}
    return {"gradient": gradient, "difference": moved, "weights_after": after}


@pytest.mark.parametrize("declared", FORMS)
@pytest.mark.parametrize("true", FORMS)
def test_what_is_declared_is_held_against_what_is_found(task, true, declared):
    capture = Capture.of(
        task.model, forms(task)[true], form=declared, setting=Setting(lr=LR, batch_size=1)
    )
    found = consistency(capture, task)
    assert found.found == true
    assert found.contradicts == (true != declared)
    if true != declared:
        assert f"form={true!r}" in found.words


def test_where_the_numbers_do_not_tell_nothing_is_claimed():
    # Two classes: the gradient at the logits is (-a, a), whichever way it points.
    task = sp.zoo.lenet(classes=2)
    batch = sp.Batch(sp.data.load("photos").batch(1).inputs, torch.tensor([1]))
    gradient = sp.Client(sp.Gradient())(task, batch, rng=sp.rng(0)).tensors
    found = consistency(Capture.of(task.model, gradient, form="gradient"), task)
    assert found.found is None
    assert not found.contradicts


def test_weights_that_many_local_steps_moved_far_are_not_refused():
    task = sp.zoo.lenet()
    before, moved = task.parameters, forms(task)["difference"]
    size = {n: float(before[n].norm() / moved[n].norm().clamp_min(1e-30)) for n in moved}
    after = {n: before[n] + 2 * size[n] * moved[n] for n in moved}
    setting = Setting(lr=LR, epochs=20, batch_size=1)
    capture = Capture.of(task.model, after, form="weights_after", setting=setting)
    assert not consistency(capture, task).contradicts
    # Nor is a difference that mostly follows weight decay taken for weights.
    decayed = {n: moved[n] - 0.5 * before[n] for n in moved}
    capture = Capture.of(task.model, decayed, form="weights_after", setting=setting)
    assert consistency(capture, task).contradicts


def test_a_sum_that_is_called_a_mean_is_noticed(task):
    batch = sp.Batch(sp.data.load("photos").batch(16).inputs, torch.zeros(16, dtype=torch.long))
    summed = sp.Client(sp.Gradient(reduction="sum"))(task, batch, rng=sp.rng(0)).tensors
    said = consistency(Capture.of(task.model, summed, form="gradient"), task).words
    assert "reduction='sum'" in said
    setting = Setting(reduction="sum", batch_size=16)
    honest = Capture.of(task.model, summed, form="gradient", setting=setting)
    assert consistency(honest, task).words.endswith("it looks like one")


def test_a_wrong_learning_rate_is_noticed(task):
    wrong = Capture.of(
        task.model, forms(task)["difference"], form="difference", setting=Setting(lr=LR / 100)
    )
    assert "check lr and steps" in consistency(wrong, task).words
