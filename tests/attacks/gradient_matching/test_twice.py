"""Layers that are cheap to differentiate twice compute what torch's own do."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.domains import Image, Signal
from seepage.search.fast._double_backward import Convolution, _KnownStatistics, use_double_backward
from seepage.threats import Simulation


def networks():
    layers = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Tanh()
    grouped = nn.Conv2d(4, 6, 3, groups=2, dilation=2), nn.Sigmoid(), nn.Flatten()
    yield "image", nn.Sequential(*layers, *grouped, nn.Linear(6 * 4 * 4, 5)), Image((3, 16, 16))
    signal = nn.Conv1d(1, 4, 5, padding=2), nn.Tanh(), nn.BatchNorm1d(4), nn.Flatten()
    yield "signal", nn.Sequential(*signal, nn.Linear(4 * 24, 5)), Signal((1, 24))


def statistics_of_use(model):
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)


def update_and_slope(task, client):
    inputs = task.domain.sample(2, rng=sp.rng(1)).double().requires_grad_()
    update = Simulation(client, task)(inputs, torch.tensor([0, 3])).flat()
    weights = torch.linspace(-1, 1, len(update), dtype=torch.float64).sin()
    slope = torch.autograd.grad((weights * update).sum() + update.square().sum(), inputs)[0]
    return update.detach(), slope


@pytest.mark.parametrize(
    "client",
    [
        sp.Client(sp.Gradient()),
        sp.Client(sp.FedAvg(lr=0.3, steps=3)),
        sp.Client(sp.Gradient(), sp.chain(sp.ClipEach(0.1), sp.Mean())),
    ],
    ids=["gradient", "local steps", "per example"],
)
@pytest.mark.parametrize(("name", "model", "domain"), [*networks()], ids=lambda v: str(v)[:6])
def test_updates_and_their_slopes_are_those_of_torch(name, model, domain, client):
    torch.manual_seed(0)
    statistics_of_use(model)
    task = sp.Task(model, sp.cross_entropy, domain).to(dtype=torch.float64)
    theirs, ours = (update_and_slope(t, client) for t in (task, use_double_backward(task)))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_layers_are_exchanged_where_the_form_is_known():
    task = sp.zoo.convnet(width=2)
    kinds = [type(m) for m in use_double_backward(task).model.modules()]
    assert kinds.count(Convolution) == kinds.count(_KnownStatistics) == 8
    assert use_double_backward(task).parameters.keys() == task.parameters.keys()
    circular = use_double_backward(sp.zoo.convnet(width=2, padding="circular")).model
    assert not any(isinstance(m, Convolution) for m in circular.modules())
    by_batch = use_double_backward(task.in_mode("train")).model
    assert not any(isinstance(m, _KnownStatistics) for m in by_batch.modules())
