"""A six-layer network for digits, without batch normalisation."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.domains import MNIST
from seepage.zoo.arguments import whole
from seepage.zoo.naming import call_name
from seepage.zoo.seeding import seeded
from seepage.zoo.shapes import convolved, image_shape

MULTIPLES = ((1, 1), (2, 2))
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
        model = _network(width, classes, image_shape("mnist_convnet", domain))
    name = call_name(mnist_convnet, {"width": width, "classes": classes, "seed": seed})
    return Task(model, cross_entropy, domain, name=name)


def _network(width: int, classes: int, shape: tuple[int, int, int]) -> nn.Sequential:
    channels, *sizes = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    number = 0
    for stage, multiples in enumerate(MULTIPLES, start=1):
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
