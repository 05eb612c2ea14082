"""One convolution and a linear layer, for images and for signals."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.core.errors import InvalidValue
from seepage.domains import CIFAR10
from seepage.zoo.arguments import whole
from seepage.zoo.naming import call_name
from seepage.zoo.seeding import seeded
from seepage.zoo.shapes import convolved

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
