"""The ConvNet of Inverting Gradients, in every width."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.core.errors import InvalidValue
from seepage.domains.box import CIFAR10, MNIST
from seepage.zoo.building import call_name, choice, convolved, image_shape, seeded, whole

Pooling = Literal["max", "average"]
Padding = Literal["zeros", "circular"]

MULTIPLES = ((1, 2, 2, 4, 4, 4), (4, 4))
WINDOW = 3
POOLINGS: Mapping[str, Callable[[int], nn.Module]] = MappingProxyType(
    {"max": nn.MaxPool2d, "average": nn.AvgPool2d}
)


def convnet(
    *,
    width: int = 64,
    pooling: Pooling = "max",
    padding: Padding = "zeros",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ConvNet of Inverting Gradients: eight 3x3 convolutions, two poolings, a linear head.

    Output channels, in multiples of the width D: 1, 2, 2, 4, 4, 4, pool, 4, 4, pool. Each
    convolution is followed by batch normalisation and ReLU. A 32x32 image leaves 36 D features.

    Args:
        width: Channels D of the first convolution: 64 in ConvNet-64.
        pooling: "max", or "average", from whose output the gradient of its input can be read.
        padding: "zeros", or "circular", which makes the convolutions blind to translation.
        classes: Number of outputs.
        domain: The space of the images.
        seed: Of the weights, which have PyTorch's default distribution.

    Example:
        >>> convnet(width=8).parameters["head.weight"].shape
        torch.Size([10, 288])

    Deviations:
        The paper's section 3 speaks of seven convolutions; its Figure 11, followed here, of eight.

    References:
        Geiping et al., 2020, Figure 11 (geiping2020inverting)
    """
    whole("width", width)
    choice("pooling", pooling, POOLINGS)
    choice("padding", padding, ("zeros", "circular"))
    whole("classes", classes, at_least=2)
    options = {
        "width": width,
        "pooling": pooling,
        "padding": padding,
        "classes": classes,
        "seed": seed,
    }
    with seeded(seed):
        model = _network(width, pooling, padding, classes, image_shape("convnet", domain))
    return Task(model, cross_entropy, domain, name=call_name(convnet, options))


def _network(
    width: int, pooling: Pooling, padding: Padding, classes: int, shape: tuple[int, int, int]
) -> nn.Sequential:
    channels, *sizes = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    number = 0
    for stage, multiples in enumerate(MULTIPLES, start=1):
        for multiple in multiples:
            number += 1
            layers[f"conv{number}"] = nn.Conv2d(
                channels, multiple * width, 3, padding=1, padding_mode=padding
            )
            layers[f"bn{number}"] = nn.BatchNorm2d(multiple * width)
            layers[f"relu{number}"] = nn.ReLU()
            channels = multiple * width
        layers[f"pool{stage}"] = POOLINGS[pooling](WINDOW)
        sizes = [*convolved(sizes, kernel=WINDOW, stride=WINDOW)]
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * math.prod(sizes), classes)
    return nn.Sequential(layers)


CHANNELS, KERNEL, STRIDES = 12, 5, (2, 2, 1)


def lenet(*, classes: int = 10, domain: Domain = CIFAR10, seed: int = 0) -> Task:
    """LeNet of deep leakage: three 5x5 sigmoid convolutions of 12 channels and a linear head.

    Strides 2, 2, 1 and padding 2 leave 12 x 8 x 8 = 768 features of a 32x32 image. Every weight
    and bias is uniform in (-0.5, 0.5), which keeps the sigmoids far from flat.

    Args:
        classes: Number of outputs; the paper's CIFAR-100 has 100.
        domain: The space of the images; the paper's code feeds them unnormalised, as
            `Image((3, 32, 32))` does.
        seed: Of the weights.

    Example:
        >>> lenet(classes=100).parameters["head.weight"].shape
        torch.Size([100, 768])

    References:
        Zhu et al., 2019 (zhu2019deep)
    """
    whole("classes", classes, at_least=2)
    channels, *sizes = image_shape("lenet", domain)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    with seeded(seed):
        for number, stride in enumerate(STRIDES, start=1):
            layers[f"conv{number}"] = nn.Conv2d(
                channels, CHANNELS, KERNEL, stride=stride, padding=KERNEL // 2
            )
            layers[f"sigmoid{number}"] = nn.Sigmoid()
            sizes = [*convolved(sizes, kernel=KERNEL, stride=stride, padding=KERNEL // 2)]
            channels = CHANNELS
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(channels * math.prod(sizes), classes)
        model = nn.Sequential(layers)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.uniform_(-0.5, 0.5)
    name = call_name(lenet, {"classes": classes, "seed": seed})
    return Task(model, cross_entropy, domain, name=name)


CNN_VARIANTS: Mapping[str, tuple[tuple[int, int, int, int], ...]] = MappingProxyType(
    {
        "cnn2-v1": ((3, 6, 1, 0),),
        "cnn2-v2": ((4, 6, 2, 0),),
        "cnn3-v1": ((3, 6, 1, 0), (4, 3, 2, 0)),
        "cnn3-v2": ((4, 6, 2, 0), (3, 3, 2, 0)),
        "cnn3-v3": ((3, 6, 1, 0), (3, 9, 1, 0)),
        "cnn3-v4": ((3, 1, 1, 0), (3, 6, 1, 0)),
        "cnn4-v1": ((3, 6, 1, 0), (4, 5, 2, 0), (4, 3, 1, 0)),
        "cnn4-v2": ((5, 16, 1, 0), (5, 6, 2, 0), (5, 32, 1, 2)),
    }
)
"""Kernel width, output channels, stride and padding of each convolution."""


def cnn(
    *, variant: str = "cnn3-v3", classes: int = 10, domain: Domain = CIFAR10, seed: int = 0
) -> Task:
    """One of eight shallow networks: bias-free convolutions with Tanh, then a linear layer.

    Args:
        variant: A row of the paper's Table 1: "cnn2-v1" and "cnn2-v2" have one convolution,
            "cnn3-v1" to "cnn3-v4" two, "cnn4-v1" and "cnn4-v2" three.
        classes: Number of outputs.
        domain: The space of the images; the paper's code shifts them to [-0.5, 0.5], as
            `Image((3, 32, 32), mean=(0.5, 0.5, 0.5))` does.
        seed: Of the weights, which have PyTorch's default distribution: uniform, as the paper's.

    Example:
        >>> cnn(variant="cnn4-v2").parameters["head.weight"].shape
        torch.Size([10, 4608])

    References:
        Chen and Campbell, 2022, Table 1 (chen2022analysing)
    """
    choice("variant", variant, CNN_VARIANTS)
    whole("classes", classes, at_least=2)
    channels, *sizes = image_shape("cnn", domain)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    with seeded(seed):
        for number, layer in enumerate(CNN_VARIANTS[variant], start=1):
            kernel, filters, stride, padding = layer
            layers[f"conv{number}"] = nn.Conv2d(
                channels, filters, kernel, stride=stride, padding=padding, bias=False
            )
            layers[f"tanh{number}"] = nn.Tanh()
            sizes = [*convolved(sizes, kernel=kernel, stride=stride, padding=padding)]
            channels = filters
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(channels * math.prod(sizes), classes)
        model = nn.Sequential(layers)
    name = call_name(cnn, {"variant": variant, "classes": classes, "seed": seed})
    return Task(model, cross_entropy, domain, name=name)


MNIST_MULTIPLES = ((1, 1), (2, 2))
HIDDEN_MULTIPLE = 4


def mnist_convnet(
    *, width: int = 32, classes: int = 10, domain: Domain = MNIST, seed: int = 0
) -> Task:
    """Six layers for digits: four 3x3 convolutions and two linear layers, no batch normalisation.

    Output channels, in multiples of the width D: 1, 1, pool, 2, 2, pool, then 4 D hidden units;
    ReLU after every layer but the last, max pooling of width 2.

    Args:
        width: Channels D of the first convolution.
        classes: Number of outputs.
        domain: The space of the images.
        seed: Of the weights, which have PyTorch's default distribution.

    Example:
        >>> mnist_convnet(width=8).parameters["hidden.weight"].shape  # 16 x 7 x 7 features
        torch.Size([32, 784])

    Deviations:
        The paper says "a simple 6-layer ConvNet" that "does not contain BatchNorm layers" and
        gives no shapes; the split into convolutions and linear layers, the widths and the
        poolings are our reading.

    References:
        Huang et al., 2021, appendix (huang2021evaluating)
    """
    whole("width", width)
    whole("classes", classes, at_least=2)
    with seeded(seed):
        model = _mnist_network(width, classes, image_shape("mnist_convnet", domain))
    name = call_name(mnist_convnet, {"width": width, "classes": classes, "seed": seed})
    return Task(model, cross_entropy, domain, name=name)


def _mnist_network(width: int, classes: int, shape: tuple[int, int, int]) -> nn.Sequential:
    channels, *sizes = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    number = 0
    for stage, multiples in enumerate(MNIST_MULTIPLES, start=1):
        for multiple in multiples:
            number += 1
            layers[f"conv{number}"] = nn.Conv2d(channels, multiple * width, 3, padding=1)
            layers[f"relu{number}"] = nn.ReLU()
            channels = multiple * width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
        sizes = [*convolved(sizes, kernel=2, stride=2)]
    layers["flatten"] = nn.Flatten()
    layers["hidden"] = nn.Linear(channels * math.prod(sizes), HIDDEN_MULTIPLE * width)
    layers["relu"] = nn.ReLU()
    layers["head"] = nn.Linear(HIDDEN_MULTIPLE * width, classes)
    return nn.Sequential(layers)


CONVOLUTIONS: dict[int, type[nn.Conv1d] | type[nn.Conv2d]] = {2: nn.Conv1d, 3: nn.Conv2d}


def single_conv(
    *,
    filters: int = 12,
    kernel: int = 5,
    stride: int = 2,
    padding: int = 2,
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """One convolution with bias, sigmoid and a linear head: recovery needs enough filters.

    Images of width d leave d' = floor((d - k + 2p) / s) + 1, and a batch of B images of C
    channels can be recovered from h >= (d / d')^2 B C filters. The defaults are those of the
    paper's CIFAR images: d' = 16, hence 12 filters for one image.

    Args:
        filters: Number h of filters.
        kernel: Width k of the kernel.
        stride: Stride s.
        padding: Zeros p added on each side.
        classes: Number of outputs.
        domain: The space of the inputs; signals `(C, L)` get a 1-D convolution.
        seed: Of the weights, which have PyTorch's default distribution.

    Example:
        >>> single_conv(classes=100).parameters["head.weight"].shape  # 12 x 16 x 16
        torch.Size([100, 3072])

    References:
        Qian and Hansen, 2020, Proposition 3 (qian2020what)
    """
    numbers = {"filters": filters, "kernel": kernel, "stride": stride}
    for name, value in numbers.items():
        whole(name, value)
    whole("padding", padding, at_least=0)
    whole("classes", classes, at_least=2)
    options = {**numbers, "padding": padding, "classes": classes, "seed": seed}
    if len(domain.shape) not in CONVOLUTIONS:
        raise InvalidValue(
            f"expected signals (C, L) or images (C, H, W) for single_conv, got {domain.shape}"
        )
    channels, *sizes = domain.shape
    after = convolved(sizes, kernel=kernel, stride=stride, padding=padding)
    convolution = CONVOLUTIONS[len(domain.shape)]
    with seeded(seed):
        model = nn.Sequential(
            OrderedDict(
                conv=convolution(channels, filters, kernel, stride=stride, padding=padding),
                sigmoid=nn.Sigmoid(),
                flatten=nn.Flatten(),
                head=nn.Linear(filters * math.prod(after), classes),
            )
        )
    return Task(model, cross_entropy, domain, name=call_name(single_conv, options))
