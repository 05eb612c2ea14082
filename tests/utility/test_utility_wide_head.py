"""A wide head in training: its random neurons stay, the others learn as if those were constants."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import seepage as sp
from seepage.core.errors import Diverged
from seepage.utility import Training, train
from seepage.zoo._wide_head import WideHead, random_weights

PHOTOS = sp.data.load("photos", pixels=8)


class Wide(nn.Module):
    """Pixels before a wide head."""

    def __init__(self):
        super().__init__()
        self.fc = WideHead(192, neurons=40, trained=8, classes=10, rng=sp.rng(2))

    def forward(self, x):
        return self.fc(x.flatten(1))


@pytest.fixture(scope="module")
def wide():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sp.Task(Wide(), sp.cross_entropy, PHOTOS.domain).to(dtype=torch.float64)


def test_random_weights_are_the_memory_of_the_network():
    model = Wide()
    rows, columns = random_weights(model)
    rows.zero_()
    columns.fill_(3.0)
    assert not model.fc.hidden.weight[8:].any()
    assert bool((model.fc.head.weight[:, 8:] == 3).all())
    assert model.fc.hidden.weight[:8].any()


def test_trained_neurons_learn_as_if_the_random_ones_were_constants(wide):
    data = PHOTOS.batch(12).to(dtype=torch.float64)
    plan = Training(steps=6, batch_size=12, lr=0.2, momentum=0.9, weight_decay=0.1)
    got = train(wide, data, held_out=data, plan=plan, delta=None, rng=sp.rng(0)).task.parameters
    start = wide.parameters
    w1, w2 = start["fc.hidden.weight"][:8].clone(), start["fc.hidden.weight"][8:]
    a1, a2 = start["fc.head.weight"][:, :8].clone(), start["fc.head.weight"][:, 8:]
    free = [w1, a1, start["fc.head.bias"].clone()]
    velocity = [torch.zeros_like(part) for part in free]
    inputs = wide.domain.normalise(data.inputs).flatten(1)
    for _ in range(6):
        for part in free:
            part.requires_grad_()
        logits = (inputs @ free[0].T).relu() @ free[1].T + (inputs @ w2.T).relu() @ a2.T + free[2]
        slopes = torch.autograd.grad(functional.cross_entropy(logits, data.labels), free)
        free = [part.detach() for part in free]
        velocity = [
            0.9 * v + slope + 0.1 * part
            for v, slope, part in zip(velocity, slopes, free, strict=True)
        ]
        free = [part - 0.2 * v for part, v in zip(free, velocity, strict=True)]
    torch.testing.assert_close(got["fc.hidden.weight"][:8], free[0])
    torch.testing.assert_close(got["fc.head.weight"][:, :8], free[1])
    torch.testing.assert_close(got["fc.head.bias"], free[2])
    assert torch.equal(got["fc.hidden.weight"][8:], w2)
    assert torch.equal(got["fc.head.weight"][:, 8:], a2)


def test_clients_still_share_the_gradient_of_random_neurons(wide):
    batch = PHOTOS.batch(2).to(dtype=torch.float64)
    update = sp.Client(sp.Gradient())(wide, batch, rng=sp.rng(0))
    assert update.tensors["fc.head.weight"][:, 8:].any()
    assert update.tensors["fc.hidden.weight"][8:].any()


def test_a_training_that_diverges_says_what_diverged_and_what_to_change():
    digits = sp.data.load("digits")
    task = sp.zoo.mlp(hidden=(12,), domain=digits.domain)
    plan = Training(steps=400, batch_size=8, lr=1e30, momentum=0.0)
    with pytest.raises(Diverged, match=r"mlp.* diverged: .* after step 10 of 400; .* below lr=1e"):
        train(
            task,
            digits.batch(80),
            held_out=digits.batch(20, start=80),
            plan=plan,
            delta=None,
            rng=sp.rng(0),
        )
