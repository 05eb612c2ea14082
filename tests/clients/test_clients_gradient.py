"""Gradients against autograd and a naive loop."""

import pytest
import torch
from torch.func import vmap

import seepage as sp
from seepage.core.errors import InvalidValue


@pytest.fixture(scope="module")
def task() -> sp.Task:
    return sp.zoo.cnn(variant="cnn3-v2")


def autograd(task: sp.Task, batch: sp.Batch, reduction: str) -> dict[str, torch.Tensor]:
    """The gradient as a plain training loop would get it."""
    model = task.model
    model.zero_grad()
    outputs = model(task.domain.normalise(batch.inputs))
    torch.nn.functional.cross_entropy(outputs, batch.labels, reduction=reduction).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_equals_backward(task, photos, reduction):
    update = sp.Gradient(reduction=reduction)(task, photos.inputs, photos.labels)
    for name, expected in autograd(task, photos, reduction).items():
        assert torch.allclose(update.tensors[name], expected, atol=1e-6)


def test_per_example_gradients_equal_a_loop(task, photos):
    each = sp.Gradient()(task, photos.inputs, photos.labels, granularity="per_example")
    for i in range(len(photos)):
        one = sp.Batch(photos.inputs[i : i + 1], photos.labels[i : i + 1])
        for name, expected in autograd(task, one, "mean").items():
            assert torch.allclose(each.tensors[name][i], expected, atol=1e-6)


def test_gradient_is_differentiable_in_the_inputs(photos):
    task = sp.zoo.cnn(variant="cnn3-v2").to(dtype=torch.float64)
    inputs = photos.inputs[:1].double().requires_grad_()
    direction = sp.rng(0).normal(inputs.shape, like=inputs)
    weigh = sp.rng(1).normal((sum(p.numel() for p in task.parameters.values()),), like=inputs)

    def value(x: torch.Tensor) -> torch.Tensor:
        return sp.Gradient()(task, x, photos.labels[:1]).flat() @ weigh

    (slope,) = torch.autograd.grad(value(inputs), inputs)
    step = 1e-6
    numeric = (value(inputs + step * direction) - value(inputs - step * direction)) / (2 * step)
    assert torch.isclose((slope * direction).sum(), numeric, rtol=1e-5)


@pytest.mark.parametrize("local", [sp.Gradient(), sp.FedAvg(lr=0.1, steps=2)], ids=repr)
def test_local_computations_work_under_vmap(task, photos, local):
    candidates = torch.stack([photos.inputs, photos.inputs.flip(0)])
    together = vmap(lambda x: local(task, x, photos.labels).flat())(candidates)
    apart = torch.stack([local(task, x, photos.labels).flat() for x in candidates])
    assert torch.allclose(together, apart, atol=1e-5)


def test_per_example_gradients_are_refused_where_batchnorm_mixes_the_batch(photos):
    task = sp.zoo.convnet(width=2).in_mode("train")
    with pytest.raises(InvalidValue, match="batchnorm='running'"):
        sp.Gradient()(task, photos.inputs, photos.labels, granularity="per_example")


def test_an_unknown_reduction_is_refused():
    with pytest.raises(InvalidValue, match="'mean' or 'sum', got 'average'"):
        sp.Gradient(reduction="average")


def test_a_client_whose_chain_ends_per_example_is_refused():
    with pytest.raises(InvalidValue, match=r"end the chain with Mean\(\)"):
        sp.Client(sp.Gradient(), sp.ClipEach(1.0))


def test_clipping_each_example_of_fedavg_is_refused_at_construction():
    with pytest.raises(InvalidValue, match="produces only aggregate"):
        sp.Client(sp.FedAvg(lr=0.1, steps=2), sp.chain(sp.ClipEach(1.0), sp.Mean()))
