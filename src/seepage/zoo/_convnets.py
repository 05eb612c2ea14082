"""Convolutional networks of the papers, from one convolution to the eight of ConvNet."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from seepage.core import Domain, Task
from seepage.core.errors import InvalidValue
from seepage.domains._box import CIFAR10, MNIST
from seepage.zoo._build_task import (
    build_task,
    convolve_sizes,
    require_choice,
    require_image_shape,
    require_int,
)

Pooling = Literal["max", "average"]
Padding = Literal["zeros", "circular"]

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
        pooling: "max", or "average", whose output determines the gradient of its input.
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

    def make() -> nn.Module:
        stages = [[m * width for m in multiples] for multiples in ((1, 2, 2, 4, 4, 4), (4, 4))]
        shape = require_image_shape("convnet", domain)
        pool = POOLINGS[pooling]
        layers, features = _stack_stages(shape, stages, pool, 3, padding=padding, batchnorm=True)
        return nn.Sequential(OrderedDict(layers, head=nn.Linear(features, classes)))

    options = {"width": width, "pooling": pooling, "padding": padding}
    return build_task(convnet, make, domain, **options, classes=classes, seed=seed)


def _stack_stages(
    shape: tuple[int, int, int],
    stages: Sequence[Sequence[int]],
    pool: Callable[[int], nn.Module],
    window: int,
    *,
    padding: Padding = "zeros",
    batchnorm: bool = False,
) -> tuple[OrderedDict[str, nn.Module], int]:
    """Stack stages of 3x3 convolutions, a pooling after each, and count the features."""
    channels, *sizes = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    number = 0
    for stage, widths in enumerate(stages, start=1):
        for after in widths:
            number += 1
            convolution = nn.Conv2d(channels, after, 3, padding=1, padding_mode=padding)
            layers[f"conv{number}"] = convolution
            if batchnorm:
                layers[f"bn{number}"] = nn.BatchNorm2d(after)
            layers[f"relu{number}"] = nn.ReLU()
            channels = after
        layers[f"pool{stage}"] = pool(window)
        sizes = [*convolve_sizes(sizes, kernel=window, stride=window)]
    layers["flatten"] = nn.Flatten()
    return layers, channels * math.prod(sizes)


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

    def make() -> nn.Module:
        layers = ((5, 12, 2, 2), (5, 12, 2, 2), (5, 12, 1, 2))
        shape = require_image_shape("lenet", domain)
        model = _stack_convolutions(shape, layers, nn.Sigmoid, classes, bias=True)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.uniform_(-0.5, 0.5)
        return model

    return build_task(lenet, make, domain, classes=classes, seed=seed)


ConvolutionShape = tuple[int, int, int, int]
"""Kernel width, output channels, stride and padding of a convolution."""

CNN_VARIANTS: Mapping[str, tuple[ConvolutionShape, ...]] = MappingProxyType(
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
    require_choice("variant", variant, CNN_VARIANTS)

    def make() -> nn.Module:
        shape = require_image_shape("cnn", domain)
        return _stack_convolutions(shape, CNN_VARIANTS[variant], nn.Tanh, classes, bias=False)

    return build_task(cnn, make, domain, variant=variant, classes=classes, seed=seed)


def _stack_convolutions(
    shape: tuple[int, int, int],
    convolutions: Sequence[ConvolutionShape],
    activation: type[nn.Module],
    classes: int,
    *,
    bias: bool,
    hidden: int | None = None,
) -> nn.Sequential:
    """Convolutions with an activation each, a hidden layer if there is one, a linear head."""
    channels, *sizes = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (kernel, after, stride, padding) in enumerate(convolutions, start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, after, kernel, stride, padding, bias=bias)
        layers[f"{activation.__name__.lower()}{number}"] = activation()
        sizes = [*convolve_sizes(sizes, kernel=kernel, stride=stride, padding=padding)]
        channels = after
    layers["flatten"], features = nn.Flatten(), channels * math.prod(sizes)
    if hidden is not None:
        layers["hidden"], layers["activation"] = nn.Linear(features, hidden), activation()
        features = hidden
    layers["head"] = nn.Linear(features, classes)
    return nn.Sequential(layers)


def wang_cnn(
    *,
    width: int = 32,
    hidden: int | None = None,
    classes: int = 10,
    domain: Domain = MNIST,
    seed: int = 0,
) -> Task:
    """CNN of Wang et al.: four 3x3 convolutions with LeakyReLU and a large linear head.

    Output channels, in multiples of the width D: 1, 2, 4, 8, with strides 2, 1, 2, 1. A 28x28
    digit leaves 8 D x 7 x 7 features, 12 544 of them at the default width.

    Args:
        width: Channels D of the first convolution.
        hidden: Units of a linear layer with LeakyReLU before the head; none if not given. The code
            of Inverting Gradients has 12 544, which are 157 million weights.
        classes: Number of outputs.
        domain: The space of the images.
        seed: Of the weights, which have PyTorch's default distribution.

    Example:
        >>> wang_cnn().parameters["head.weight"].shape
        torch.Size([10, 12544])

    Deviations:
        Inverting Gradients, which attacks this network, prints "a 4-layer CNN, albeit with a
        significantly large fully-connected (FC) layer" and that it has strides. The channels, the
        strides and the slope of LeakyReLU, 0.01, are those of its code. That the large layer is
        the head, as in LeNet, is our reading: the code has a hidden layer before it. The code's
        softmax before the cross-entropy, which applies another, is left out.

    References:
        Wang et al., 2019 (wang2019beyond); Geiping et al., 2020, section 3 (geiping2020inverting)
    """
    if hidden is not None:
        require_int("hidden", hidden)

    def make() -> nn.Module:
        channels = zip((1, 2, 4, 8), (2, 1, 2, 1), strict=True)
        layers = [(3, multiple * width, stride, 1) for multiple, stride in channels]
        shape = require_image_shape("wang_cnn", domain)
        return _stack_convolutions(shape, layers, nn.LeakyReLU, classes, bias=True, hidden=hidden)

    return build_task(
        wang_cnn, make, domain, width=width, hidden=hidden, classes=classes, seed=seed
    )


def mnist_convnet(
    *, width: int = 32, classes: int = 10, domain: Domain = MNIST, seed: int = 0
) -> Task:
    """Six layers for digits: four 3x3 convolutions and two linear layers, no batch normalisation.

    Output channels, in multiples of the width D: 1, 1, pool, 2, 2, pool, then 4 D hidden units;
    ReLU after every layer but the last, max pooling of width 2.

    Arguments as for `convnet`.

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

    def make() -> nn.Module:
        stages = ((width, width), (2 * width, 2 * width))
        shape = require_image_shape("mnist_convnet", domain)
        layers, features = _stack_stages(shape, stages, nn.MaxPool2d, 2)
        layers["hidden"] = nn.Linear(features, 4 * width)
        layers["relu"] = nn.ReLU()
        layers["head"] = nn.Linear(4 * width, classes)
        return nn.Sequential(layers)

    return build_task(mnist_convnet, make, domain, width=width, classes=classes, seed=seed)


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
    if len(domain.shape) not in CONVOLUTIONS:
        raise InvalidValue(
            f"expected signals (C, L) or images (C, H, W) for single_conv, got {domain.shape}"
        )

    def make() -> nn.Module:
        channels, *sizes = domain.shape
        after = convolve_sizes(sizes, kernel=kernel, stride=stride, padding=padding)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv"] = CONVOLUTIONS[len(domain.shape)](channels, filters, kernel, stride, padding)
        layers["sigmoid"], layers["flatten"] = nn.Sigmoid(), nn.Flatten()
        layers["head"] = nn.Linear(filters * math.prod(after), classes)
        return nn.Sequential(layers)

    numbers = {"filters": filters, "kernel": kernel, "stride": stride, "padding": padding}
    return build_task(single_conv, make, domain, **numbers, classes=classes, seed=seed)
