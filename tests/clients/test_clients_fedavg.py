"""FedAvg against torch.optim.SGD."""

import copy
import math

import pytest
import torch

import seepage as sp
from seepage.clients import batch_statistics
from seepage.core._task import batchnorm_layers
from seepage.core.errors import InvalidValue

MODES = {"running": "eval", "exact": "train", "unknown": "train"}


def trained_by_torch(task: sp.Task, batch: sp.Batch, local: sp.FedAvg) -> dict[str, torch.Tensor]:
    """How far torch.optim.SGD moves the parameters on the same data, in an ordinary loop."""
    model = copy.deepcopy(task.model).train(task.mode == "train")
    optimiser = torch.optim.SGD(model.parameters(), lr=local.lr, momentum=local.momentum)
    size = local.local_batch_size or len(batch)
    slices = [slice(i, i + size) for i in range(0, len(batch), size)]
    steps = local.steps or local.epochs * len(slices)
    for step in range(steps):
        window = slices[step % len(slices)]
        optimiser.zero_grad()
        outputs = model(task.domain.normalise(batch.inputs[window]))
        torch.nn.functional.cross_entropy(outputs, batch.labels[window]).backward()
        optimiser.step()
    before = dict(task.model.named_parameters())
    return {n: (p - before[n]).detach() for n, p in model.named_parameters()}


def assert_moves_like_torch(task, batch, local, atol=1e-6):
    update = local(task, batch.inputs, batch.labels)
    assert update.kind == "difference"
    for name, expected in trained_by_torch(task, batch, local).items():
        assert torch.allclose(update.tensors[name], expected, atol=atol), name


@pytest.mark.parametrize("batchnorm", MODES)
def test_five_steps_on_a_convnet_equal_sgd(photos, batchnorm):
    task = sp.zoo.convnet(width=8).in_mode(MODES[batchnorm])
    small = sp.Batch(photos.inputs[:2], photos.labels[:2])
    assert_moves_like_torch(task, small, sp.FedAvg(lr=1e-2, steps=5))


@pytest.mark.parametrize("batchnorm", MODES)
def test_five_steps_on_a_residual_network_equal_sgd(photos, batchnorm):
    task = sp.zoo.resnet20().in_mode(MODES[batchnorm])
    assert_moves_like_torch(task, photos, sp.FedAvg(lr=1e-2, steps=5))


@pytest.mark.parametrize(
    "local",
    [
        sp.FedAvg(lr=0.1, epochs=2, local_batch_size=3),
        sp.FedAvg(lr=0.1, steps=7, local_batch_size=2, momentum=0.9),
        sp.FedAvg(lr=0.1, epochs=3, momentum=0.5),
        sp.FedAvg(lr=0.1, steps=1, local_batch_size=100),
    ],
    ids=repr,
)
def test_epochs_local_batches_and_momentum_equal_sgd(photos, local):
    assert_moves_like_torch(sp.zoo.cnn(variant="cnn3-v2"), photos, local)


def test_one_step_is_minus_the_gradient_times_the_rate(photos):
    task = sp.zoo.cnn(variant="cnn2-v2")
    gradient = sp.Gradient()(task, photos.inputs, photos.labels)
    moved = sp.FedAvg(lr=0.1, steps=1)(task, photos.inputs, photos.labels)
    assert torch.allclose(moved.flat(), -0.1 * gradient.flat(), atol=1e-7)


def test_statistics_are_those_torch_would_track(photos):
    task = sp.zoo.convnet(width=4).in_mode("train")
    measured = batch_statistics(task, photos.inputs)
    model = copy.deepcopy(task.model).train()
    for layer in batchnorm_layers(model).values():
        layer.momentum = 1.0
    counts = {}
    for name, layer in batchnorm_layers(model).items():
        layer.register_forward_pre_hook(
            lambda _, a, n=name: counts.update({n: a[0].numel() / a[0].shape[1]})
        )
    model(task.domain.normalise(photos.inputs))
    assert measured.keys() == batchnorm_layers(model).keys()
    for name, layer in batchnorm_layers(model).items():
        biased = layer.running_var * (counts[name] - 1) / counts[name]
        assert torch.allclose(measured[name].mean, layer.running_mean, atol=1e-5)
        assert torch.allclose(measured[name].variance, biased, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": 0.1}, "either steps or epochs"),
        ({"lr": 0.1, "steps": 1, "epochs": 1}, "either steps or epochs"),
        ({"lr": 0.1, "steps": 0}, "steps >= 1, got 0"),
        ({"lr": -1.0, "steps": 1}, "lr > 0, got -1.0"),
        ({"lr": math.nan, "steps": 1}, "lr > 0"),
        ({"lr": 0.1, "steps": 1, "momentum": 1.0}, r"momentum in \[0, 1\)"),
        ({"lr": 0.1, "epochs": 1, "local_batch_size": 0}, "local_batch_size >= 1"),
    ],
)
def test_impossible_options_are_refused_with_the_value(options, said):
    with pytest.raises(InvalidValue, match=said):
        sp.FedAvg(**options)


def test_a_misspelt_option_is_a_type_error():
    with pytest.raises(TypeError):
        sp.FedAvg(lr=0.1, step=3)
