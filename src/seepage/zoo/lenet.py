"""The smooth LeNet that deep leakage from gradients was shown on."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.domains import CIFAR10
from seepage.zoo.arguments import whole
from seepage.zoo.naming import call_name
from seepage.zoo.seeding import seeded
from seepage.zoo.shapes import convolved, image_shape

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
