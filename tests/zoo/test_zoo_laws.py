"""What holds for every architecture: differentiable, reproducible, named by its call."""

import inspect

import pytest
import torch
from torch.func import functional_call, grad, vmap

from seepage import zoo
from seepage.core import Batch, Task
from seepage.core._task import batchnorm_layers
from seepage.domains import CIFAR10, MNIST, Image, Signal, Tokens

SMALL = Image((3, 8, 8))
MEDIUM = Image((3, 12, 12))
SIGNAL = Signal((2, 12))

CALLS = {
    "mlp": {"hidden": (5,), "domain": SMALL},
    "mlp of signals": {"hidden": (5,), "domain": SIGNAL},
    "fc": {"domain": SMALL},
    "lenet": {"domain": SMALL},
    "convnet": {"width": 2, "domain": MEDIUM},
    "convnet, average": {"width": 2, "pooling": "average", "domain": MEDIUM},
    "convnet, circular": {"width": 2, "padding": "circular", "domain": MEDIUM},
    "resnet20": {"width": 2, "domain": SMALL},
    "resnet20, B": {"width": 2, "shortcut": "B", "domain": SMALL},
    "resnet20, max": {"width": 2, "pooling": "max", "domain": SMALL},
    "resnet32": {"width": 1, "domain": SMALL},
    "resnet56": {"width": 1, "domain": SMALL},
    "resnet18": {"width": 2, "domain": SMALL},
    "resnet18, preactivation": {"width": 2, "preactivation": True, "domain": SMALL},
    "resnet18, imagenet": {"width": 2, "stem": "imagenet", "domain": SMALL},
    "resnet18, max": {"width": 2, "pooling": "max", "domain": SMALL},
    "resnet50": {"width": 1, "domain": SMALL},
    "cnn": {},
    "cnn2-v1": {"domain": MEDIUM},
    "cnn4-v2": {"domain": Image((3, 20, 20))},
    "single_conv": {"filters": 2, "domain": SMALL},
    "single_conv of signals": {"filters": 2, "domain": SIGNAL},
    "wang_cnn": {"width": 2, "domain": Image((1, 8, 8))},
    "wang_cnn, hidden": {"width": 1, "hidden": 5, "domain": Image((1, 8, 8))},
    "mnist_convnet": {"width": 2, "domain": Image((1, 8, 8))},
    "two_layer": {"neurons": 12, "domain": SMALL},
    "wide_head_resnet18": {"width": 1, "neurons": 12, "trained": 4, "domain": SMALL},
}

# How the names of networks with batch normalisation begin.
NORMALISED = ("convnet", "resnet", "wide_head")


def make(call: str, **more: object) -> Task:
    name = call.split(",")[0].split(" ")[0]
    return zoo.MODELS[name](**{"classes": 4, **CALLS[call], **more})


def two_people(task: Task) -> Batch:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand(2, *task.domain.shape, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.tensor([1, 3]))


def reference(task: Task, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradient, and gradient of its squared norm in the input, by plain autograd."""
    network = task.to(dtype=torch.float64).model.eval()
    image = image.clone().requires_grad_()
    logits = network(task.domain.normalise(image[None]))
    loss = torch.nn.functional.cross_entropy(logits, label[None])
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    flat = torch.cat([g.flatten() for g in gradients])
    return flat.detach(), torch.autograd.grad(flat.square().sum(), image)[0]


@pytest.mark.parametrize("call", CALLS)
def test_torch_func_agrees_with_autograd_to_second_order(call):
    task = make(call)
    double = task.to(dtype=torch.float64)
    network, parameters = double.network, dict(double.parameters)
    batch = two_people(task)

    def flat(image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        def loss(at: dict[str, torch.Tensor]) -> torch.Tensor:
            logits = functional_call(network, at, (task.domain.normalise(image),))
            return task.loss(logits, label).squeeze()

        return torch.cat([g.flatten() for g in grad(loss)(parameters).values()])

    images, labels = batch.inputs[:, None], batch.labels[:, None]
    first = vmap(flat)(images, labels)
    second = vmap(grad(lambda x, y: flat(x, y).square().sum()))(images, labels)
    for person in range(2):
        gradient, curvature = reference(task, batch.inputs[person], batch.labels[person])
        torch.testing.assert_close(first[person], gradient)
        torch.testing.assert_close(second[person, 0], curvature)
        assert gradient.count_nonzero() > 0


@pytest.mark.parametrize("call", CALLS)
def test_the_same_network_runs_in_single_precision(call):
    task = make(call)
    batch = two_people(task)
    double = task.to(dtype=torch.float64)
    single = task.outputs(task.parameters, batch.inputs.float())
    assert single.dtype == torch.float32
    assert single.shape == (2, 4)
    wide = double.outputs(double.parameters, batch.inputs)
    torch.testing.assert_close(single.double(), wide, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("call", [c for c in CALLS if c.startswith(NORMALISED)])
def test_batch_normalisation_by_the_batch_leaves_no_trace(call):
    task = make(call).in_mode("train")
    inputs = two_people(task).inputs.float()
    first = task.outputs(task.parameters, inputs)
    assert torch.equal(first, task.outputs(task.parameters, inputs))
    assert not torch.allclose(first[:1], make(call).outputs(task.parameters, inputs[:1]))


@pytest.mark.parametrize("call", CALLS)
def test_the_names_tell_which_networks_have_batch_normalisation(call):
    assert bool(batchnorm_layers(make(call).model)) == call.startswith(NORMALISED)


@pytest.mark.parametrize("call", CALLS)
def test_weights_depend_on_the_seed_alone(call):
    torch.manual_seed(11)
    first = make(call, seed=7)
    torch.manual_seed(12)
    again, other = make(call, seed=7), make(call, seed=8)
    for name, value in first.parameters.items():
        assert torch.equal(value, again.parameters[name])
    assert any(not torch.equal(v, other.parameters[n]) for n, v in first.parameters.items())


@pytest.mark.parametrize("call", CALLS)
def test_the_callers_randomness_is_untouched(call):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    make(call, seed=7)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_callers_default_device_is_not_asked():
    with torch.device("meta"):
        task = make("lenet")
    assert torch.equal(task.parameters["head.bias"], make("lenet").parameters["head.bias"])


def test_the_seed_of_the_random_head_moves_the_random_neurons_alone():
    plain, moved = make("wide_head_resnet18"), make("wide_head_resnet18", head_seed=1)
    for name, value in plain.parameters.items():
        if name != "fc.hidden.weight":
            assert torch.equal(value, moved.parameters[name])
    before, after = plain.parameters["fc.hidden.weight"], moved.parameters["fc.hidden.weight"]
    assert torch.equal(before[:4], after[:4])
    assert not torch.isclose(before[4:], after[4:]).any()
    wide = make("wide_head_resnet18", deviation=1.0).parameters["fc.hidden.weight"]
    assert torch.allclose(wide[4:], before[4:] * before.shape[1] ** 0.5)
    assert torch.equal(wide[:4], before[:4])
    reseeded = make("wide_head_resnet18", seed=1).parameters["fc.hidden.weight"]
    assert torch.equal(before[4:], reseeded[4:])
    assert not torch.isclose(before[:4], reseeded[:4]).any()


@pytest.mark.parametrize("call", CALLS)
def test_nothing_works_in_place(call):
    assert not any(getattr(module, "inplace", False) for module in make(call).model.modules())


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_factory_has_the_common_keyword_only_arguments(name):
    parameters = inspect.signature(zoo.MODELS[name]).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    assert parameters["classes"].default == 10
    assert parameters["seed"].default == 0
    other = {"mnist_convnet": MNIST, "wang_cnn": MNIST, "gpt": Tokens(12, 512)}
    assert parameters["domain"].default == other.get(name, CIFAR10)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (lambda: zoo.convnet(width=64), "convnet(width=64)"),
        (lambda: zoo.convnet(width=8, pooling="average"), "convnet(width=8, pooling='average')"),
        (lambda: zoo.mlp(), "mlp(hidden=(256,))"),
        (lambda: zoo.mlp(hidden=[8], seed=2), "mlp(hidden=(8,), seed=2)"),
        (lambda: zoo.lenet(), "lenet(classes=10)"),
        (lambda: zoo.resnet20(classes=100), "resnet20(width=16, classes=100)"),
        (lambda: zoo.resnet20(pooling="max"), "resnet20(width=16, pooling='max')"),
        (lambda: zoo.resnet18(width=2), "resnet18(stem='cifar', width=2)"),
        (lambda: zoo.wang_cnn(), "wang_cnn(width=32)"),
        (lambda: zoo.wang_cnn(width=4, hidden=9), "wang_cnn(width=4, hidden=9)"),
        (lambda: zoo.cnn(variant="cnn2-v1"), "cnn(variant='cnn2-v1')"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_task_is_named_by_the_call_that_makes_it(task, name):
    assert task().name == name
    assert eval(f"zoo.{name}", {"zoo": zoo}).name == name
