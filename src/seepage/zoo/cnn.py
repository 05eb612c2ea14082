"""The eight shallow networks whose rank deficiency Chen and Campbell tabulate."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.domains import CIFAR10
from seepage.zoo.arguments import choice, whole
from seepage.zoo.naming import call_name
from seepage.zoo.seeding import seeded
from seepage.zoo.shapes import convolved, image_shape

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
