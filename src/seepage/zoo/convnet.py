"""The ConvNet of Inverting Gradients, in every width."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.domains import CIFAR10
from seepage.zoo.arguments import choice, whole
from seepage.zoo.naming import call_name
from seepage.zoo.seeding import seeded
from seepage.zoo.shapes import convolved, image_shape

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
