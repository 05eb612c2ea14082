"""Shapes and parameter counts against the papers' descriptions, counted by hand."""

import math

import pytest
import torch
from torch import nn

from seepage import zoo
from seepage.core import Task
from seepage.domains import CIFAR100, IMAGENET, MNIST, Image, Signal


def count(task: Task) -> int:
    return sum(p.numel() for p in task.parameters.values())


def convolutions(task: Task) -> list[nn.Conv2d]:
    return [m for m in task.model.modules() if isinstance(m, nn.Conv2d)]


TABLE_1 = {
    "cnn2-v1": ([(3, 6, 1, 0)], 5400),
    "cnn2-v2": ([(4, 6, 2, 0)], 1350),
    "cnn3-v1": ([(3, 6, 1, 0), (4, 3, 2, 0)], 588),
    "cnn3-v2": ([(4, 6, 2, 0), (3, 3, 2, 0)], 147),
    "cnn3-v3": ([(3, 6, 1, 0), (3, 9, 1, 0)], 7056),
    "cnn3-v4": ([(3, 1, 1, 0), (3, 6, 1, 0)], 4704),
    "cnn4-v1": ([(3, 6, 1, 0), (4, 5, 2, 0), (4, 3, 1, 0)], 363),
    "cnn4-v2": ([(5, 16, 1, 0), (5, 6, 2, 0), (5, 32, 1, 2)], 4608),
}


@pytest.mark.parametrize("variant", TABLE_1)
def test_every_cnn_variant_has_the_shapes_of_table_1(variant):
    task = zoo.cnn(variant=variant)
    layers, features = TABLE_1[variant]
    built = convolutions(task)
    assert [(c.kernel_size[0], c.out_channels, c.stride[0], c.padding[0]) for c in built] == layers
    assert all(c.bias is None for c in built)
    assert task.parameters["head.weight"].shape == (10, features)
    assert task.parameters["head.bias"].shape == (10,)
    assert task.classes == 10


@pytest.mark.parametrize("variant", TABLE_1)
def test_a_cnn_is_tanh_convolutions_and_an_affine_map(variant):
    task = zoo.cnn(variant=variant)
    image = torch.rand(2, 3, 32, 32)
    hidden = task.domain.normalise(image)
    for number, (_, _, stride, padding) in enumerate(TABLE_1[variant][0], start=1):
        weight = task.parameters[f"conv{number}.weight"]
        hidden = nn.functional.conv2d(hidden, weight, stride=stride, padding=padding).tanh()
    logits = hidden.reshape(2, -1) @ task.parameters["head.weight"].T + task.parameters["head.bias"]
    torch.testing.assert_close(task.outputs(task.parameters, image), logits)


def test_lenet_has_the_shapes_and_the_uniform_weights_of_deep_leakage():
    task = zoo.lenet(classes=100)
    built = convolutions(task)
    assert [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in built] == [
        (12, 5, 2),
        (12, 5, 2),
        (12, 5, 1),
    ]
    assert task.parameters["head.weight"].shape == (100, 768)
    assert count(task) == (12 * 3 * 25 + 12) + 2 * (12 * 12 * 25 + 12) + 100 * 769
    everything = torch.cat([p.flatten() for p in task.parameters.values()])
    assert everything.abs().max() <= 0.5
    assert everything.std() == pytest.approx(1 / math.sqrt(12), rel=0.01)
    biases = torch.cat([p for n, p in task.parameters.items() if n.endswith("bias")])
    assert biases.abs().max() > 0.4, "PyTorch's default would be within 0.06"


def test_lenet_fits_digits():
    assert zoo.lenet(domain=MNIST).parameters["head.weight"].shape == (10, 12 * 7 * 7)


def test_the_network_of_wang_has_12544_features_of_a_digit_and_a_slope_below_zero():
    task = zoo.wang_cnn()
    shapes = [(c.kernel_size[0], c.out_channels, c.stride[0]) for c in convolutions(task)]
    assert shapes == [(3, 32, 2), (3, 64, 1), (3, 128, 2), (3, 256, 1)]
    assert task.parameters["head.weight"].shape == (10, 12_544)
    kinds = [type(m) for m in task.model]
    assert kinds == 4 * [nn.Conv2d, nn.LeakyReLU] + [nn.Flatten, nn.Linear]
    weights, hidden = task.parameters, torch.randn(2, 1, 28, 28)
    expected = hidden
    for number, stride in enumerate((2, 1, 2, 1), start=1):
        kernel, bias = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
        expected = nn.functional.conv2d(expected, kernel, bias, stride, 1)
        expected = torch.where(expected > 0, expected, expected / 100)
    logits = expected.flatten(1) @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(task.model(hidden), logits)


def test_the_network_of_wang_may_have_a_hidden_layer():
    task = zoo.wang_cnn(width=2, hidden=5)
    assert task.parameters["hidden.weight"].shape == (5, 16 * 7 * 7)
    assert task.parameters["head.weight"].shape == (10, 5)
    assert [type(m) for m in task.model][-3:] == [nn.Linear, nn.LeakyReLU, nn.Linear]


@pytest.mark.parametrize("width", [8, 16, 64])
def test_convnet_really_has_the_width_it_is_asked_for(width):
    task = zoo.convnet(width=width)
    channels = [c.out_channels for c in convolutions(task)]
    assert channels == [width * multiple for multiple in (1, 2, 2, 4, 4, 4, 4, 4)]
    assert task.parameters["head.weight"].shape == (10, 36 * width)
    pairs = 3 * 1 + width * (1 * 2 + 2 * 2 + 2 * 4 + 4 * 4 * 4)
    biases_and_normalisation = 3 * 25 * width
    assert count(task) == 9 * width * pairs + biases_and_normalisation + 10 * (36 * width + 1)


def test_convnet_64_has_2904970_parameters():
    assert count(zoo.convnet(width=64)) == 2_904_970


def test_convnet_normalises_and_rectifies_after_every_convolution():
    kinds = [type(m) for m in zoo.convnet(width=2).model]
    triple = [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    tail = [nn.MaxPool2d, nn.Flatten, nn.Linear]
    assert kinds == 6 * triple + [nn.MaxPool2d] + 2 * triple + tail


def test_convnet_pools_as_asked():
    image = torch.rand(1, 8, 9, 9)
    for pooling, reduce in (("max", torch.amax), ("average", torch.mean)):
        pool = zoo.convnet(width=2, pooling=pooling).model.get_submodule("pool1")
        expected = reduce(image.reshape(1, 8, 3, 3, 3, 3), dim=(3, 5))
        torch.testing.assert_close(pool(image), expected)


@pytest.mark.parametrize(("padding", "commutes"), [("circular", True), ("zeros", False)])
def test_only_circular_padding_makes_convolutions_blind_to_translation(padding, commutes):
    body = zoo.convnet(width=2, padding=padding).network[:18]
    image = torch.randn(1, 3, 32, 32)
    moved = torch.roll(image, (5, 7), dims=(-2, -1))
    same = torch.allclose(body(moved), torch.roll(body(image), (5, 7), dims=(-2, -1)), atol=1e-4)
    assert same is commutes


def test_convnet_takes_its_size_from_the_domain():
    assert zoo.convnet(width=2, domain=MNIST).parameters["head.weight"].shape == (10, 8 * 3 * 3)
    assert zoo.convnet(width=2, domain=CIFAR100, classes=100).classes == 100


def basic_stage(before: int, after: int, blocks: int) -> int:
    first = 9 * before * after + 9 * after * after
    return first + (blocks - 1) * 18 * after * after + blocks * 4 * after


@pytest.mark.parametrize(("name", "blocks"), [("resnet20", 3), ("resnet32", 5), ("resnet56", 9)])
@pytest.mark.parametrize("width", [16, 20])
def test_cifar_resnets_have_three_stages_of_basic_blocks(name, blocks, width):
    task = zoo.MODELS[name](width=width)
    stages = [(width, width), (width, 2 * width), (2 * width, 4 * width)]
    convolutional = sum(basic_stage(before, after, blocks) for before, after in stages)
    assert count(task) == 27 * width + 2 * width + convolutional + 10 * (4 * width + 1)
    assert len([p for p in task.parameters.values() if p.ndim > 1]) == int(name[6:])


def test_option_b_adds_two_projections():
    more = (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)
    assert count(zoo.resnet20(shortcut="B")) == count(zoo.resnet20(shortcut="A")) + more == 272_474


@pytest.mark.parametrize("width", [4, 5])
def test_option_a_subsamples_and_pads_with_zeros_on_both_sides(width):
    shortcut = zoo.resnet20(width=width).model.get_submodule("layer2.0.downsample")
    inputs = torch.randn(2, width, 7, 7)
    outputs = shortcut(inputs)
    front = width // 2
    assert outputs.shape == (2, 2 * width, 4, 4)
    assert torch.equal(outputs[:, front : front + width], inputs[:, :, ::2, ::2])
    assert outputs.count_nonzero() == 2 * width * 16


@pytest.mark.parametrize(("name", "head"), [("resnet20", "linear"), ("resnet18", "fc")])
def test_resnets_pool_all_pixels_as_asked(name, head):
    image = torch.randn(2, 3, 16, 16)
    outputs = {}
    for pooling, reduce in (("max", torch.amax), ("average", torch.mean)):
        model = zoo.MODELS[name](width=2, pooling=pooling).model.eval()
        seen = []
        model.get_submodule(f"layer{3 if name == 'resnet20' else 4}").register_forward_hook(
            lambda _module, _inputs, features, seen=seen: seen.append(features)
        )
        outputs[pooling] = model(image)
        expected = model.get_submodule(head)(reduce(seen[0], dim=(2, 3)))
        torch.testing.assert_close(outputs[pooling], expected)
    assert not torch.allclose(outputs["max"], outputs["average"])


def test_preactivation_normalises_before_each_convolution_and_never_after_the_sum():
    task = zoo.resnet18(width=2, preactivation=True)
    assert count(zoo.resnet18(preactivation=True)) == 11_171_274
    model, weights = task.model.train(), dict(task.parameters)
    functional = torch.nn.functional

    def active(inputs, name):
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return functional.batch_norm(inputs, None, None, scale, shift, training=True).relu()

    inputs = torch.randn(3, 3, 32, 32)
    hidden = active(functional.conv2d(inputs, weights["conv1.weight"], padding=1), "bn1")
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            first = active(hidden, f"{name}.bn1")
            around = hidden
            if stride == 2:
                around = functional.conv2d(first, weights[f"{name}.downsample.weight"], stride=2)
            kernel = weights[f"{name}.conv1.weight"]
            second = active(functional.conv2d(first, kernel, None, stride, 1), f"{name}.bn2")
            last = functional.conv2d(second, weights[f"{name}.conv2.weight"], padding=1)
            hidden = last + around
    logits = hidden.mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]
    assert torch.allclose(model(inputs), logits, atol=1e-4)
    assert hidden.min() < 0


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        pytest.param("resnet152", 60_192_808, marks=pytest.mark.slow),
    ],
)
def test_imagenet_resnets_have_the_published_number_of_parameters(name, published):
    task = zoo.MODELS[name](stem="imagenet", classes=1000, domain=IMAGENET)
    assert count(task) == published
    assert len([p for p in task.parameters.values() if p.ndim > 1]) == int(name[6:]) + (
        3 if name == "resnet18" else 4
    ), "one weight per counted layer, and one per projection"


def test_the_cifar_stem_has_the_published_number_of_parameters_and_keeps_the_resolution():
    task = zoo.resnet18(stem="cifar")
    assert count(task) == 11_173_962
    assert task.network.layer1(task.network.conv1(torch.zeros(1, 3, 32, 32))).shape[2:] == (32, 32)


def test_the_imagenet_stem_quarters_the_resolution():
    network = zoo.resnet18(stem="imagenet", width=2).network
    assert network.maxpool(network.conv1(torch.zeros(1, 3, 64, 64))).shape == (1, 2, 16, 16)


def test_single_conv_leaves_sixteen_pixels_and_as_many_features_as_inputs():
    task = zoo.single_conv(classes=100, domain=CIFAR100)
    assert task.parameters["conv.weight"].shape == (12, 3, 5, 5)
    assert task.parameters["conv.bias"].shape == (12,)
    assert task.parameters["head.weight"].shape == (100, 12 * 16 * 16)
    assert 12 * 16 * 16 == 3 * 32 * 32
    assert task.parameters["head.bias"].shape == (100,)


def test_single_conv_convolves_signals_along_time():
    task = zoo.single_conv(filters=4, classes=5, domain=Signal((2, 140), bounds=(-3.0, 3.0)))
    assert task.parameters["conv.weight"].shape == (4, 2, 5)
    assert task.parameters["head.weight"].shape == (5, 4 * 70)
    assert task.classes == 5


def test_fc_is_the_one_hidden_layer_of_proposition_1():
    task = zoo.fc(hidden=7, domain=MNIST)
    w1, b1, w2, b2 = task.parameters.values()
    assert (w1.shape, b1.shape, w2.shape, b2.shape) == ((7, 784), (7,), (10, 7), (10,))
    image = torch.rand(3, 1, 28, 28)
    flat = MNIST.normalise(image).reshape(3, -1)
    expected = torch.sigmoid(flat @ w1.T + b1) @ w2.T + b2
    torch.testing.assert_close(task.outputs(task.parameters, image), expected)


@pytest.mark.parametrize("domain", [MNIST, Signal((2, 50))], ids=["images", "signals"])
def test_mlp_flattens_any_domain(domain):
    task = zoo.mlp(hidden=[6, 5], domain=domain, classes=3)
    inputs = math.prod(domain.shape)
    assert count(task) == 6 * (inputs + 1) + 5 * 7 + 3 * 6
    assert task.classes == 3


def test_mlp_without_bias_has_none():
    assert all(p.ndim == 2 for p in zoo.mlp(bias=False).parameters.values())


@pytest.mark.parametrize("activation", zoo.ACTIVATIONS)
def test_mlp_applies_the_activation_it_is_asked_for(activation):
    task = zoo.mlp(hidden=(6,), activation=activation, domain=Image((1, 2, 2)))
    image = torch.rand(2, 1, 2, 2)
    w1, b1, w2, b2 = task.parameters.values()
    apply = getattr(nn.functional, activation)
    expected = apply(image.reshape(2, 4) @ w1.T + b1) @ w2.T + b2
    torch.testing.assert_close(task.outputs(task.parameters, image), expected)


def test_mnist_convnet_has_six_layers_and_no_batch_normalisation():
    task = zoo.mnist_convnet(width=8)
    weights = [p for p in task.parameters.values() if p.ndim > 1]
    assert [w.ndim for w in weights] == [4, 4, 4, 4, 2, 2]
    assert not any(isinstance(m, nn.BatchNorm2d) for m in task.model.modules())
    convolutional = 9 * (8 + 64 + 128 + 256) + 8 + 8 + 16 + 16
    assert count(task) == convolutional + 32 * (16 * 49 + 1) + 10 * 33


def test_the_wide_head_starts_as_the_tensor_method_asks_for():
    task = zoo.wide_head_resnet18(width=8, neurons=1000, trained=200, classes=7)
    hidden, head = task.parameters["fc.hidden.weight"], task.parameters["fc.head.weight"]
    assert hidden.shape == (1000, 64)
    assert hidden[:200].abs().max() <= 1 / math.sqrt(64), "an ordinary linear layer"
    assert 8 * hidden[200:].mean() == pytest.approx(0, abs=0.02)
    assert 8 * hidden[200:].std() == pytest.approx(1, abs=0.02)
    for row in range(7):
        torch.testing.assert_close(head[row, 200:], torch.full((800,), (row + 1) / 800))
    assert task.model.fc.trained == 200


@pytest.mark.slow
def test_the_wide_head_has_16384_neurons_of_which_2048_are_trained():
    task = zoo.wide_head_resnet18()
    backbone = 11_173_962 - 10 * 513
    assert count(task) == backbone + 512 * 16384 + 10 * (16384 + 1)
    assert task.parameters["fc.head.weight"][9, 2048:].unique().item() == pytest.approx(10 / 14336)
