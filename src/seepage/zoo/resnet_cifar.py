"""The residual networks made for CIFAR: three stages of basic blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from seepage.core import Domain, Task, cross_entropy
from seepage.domains import CIFAR10
from seepage.zoo.arguments import choice, whole
from seepage.zoo.naming import call_name
from seepage.zoo.residual import BasicBlock, Shortcut, SubsampleAndPad, initialise, project, stage
from seepage.zoo.seeding import seeded
from seepage.zoo.shapes import image_shape

ShortcutOption = Literal["A", "B"]

SHORTCUTS: Mapping[str, Shortcut] = MappingProxyType({"A": SubsampleAndPad, "B": project})


class CifarResNet(nn.Module):
    """A 3x3 convolution, three stages of n basic blocks, the mean over pixels, a linear head."""

    def __init__(
        self, blocks: int, width: int, *, channels: int, classes: int, shortcut: Shortcut
    ) -> None:
        """Build the network with stages of one, two and four times the width."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(BasicBlock, width, width, blocks, stride=1, shortcut=shortcut)
        self.layer2 = stage(BasicBlock, width, 2 * width, blocks, stride=2, shortcut=shortcut)
        self.layer3 = stage(BasicBlock, 2 * width, 4 * width, blocks, stride=2, shortcut=shortcut)
        self.linear = nn.Linear(4 * width, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `(B, K)`."""
        hidden = relu(self.bn1(self.conv1(inputs)))
        features = self.layer3(self.layer2(self.layer1(hidden))).mean((-2, -1))
        logits: Tensor = self.linear(features)
        return logits


def resnet20(
    *,
    width: int = 16,
    shortcut: ShortcutOption = "A",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-20 for CIFAR: three stages of three basic blocks.

    Args:
        width: Channels of the first stage: 16 as published, 64 in ResNet20-4.
        shortcut: "A" subsamples and pads with zeros, "B" projects with 1x1 convolutions, as the
            code of Inverting Gradients does.
        classes: Number of outputs.
        domain: The space of the images.
        seed: Of the weights: He's normal distribution for convolutions, PyTorch's default for
            the head.

    Example:
        >>> sum(p.numel() for p in resnet20().parameters.values())
        269722

    References:
        He et al., 2016, section 4.2 (he2016deep); Geiping et al., 2020 (geiping2020inverting)
    """
    return _resnet(resnet20, 3, width, shortcut, classes, domain, seed)


def resnet32(
    *,
    width: int = 16,
    shortcut: ShortcutOption = "A",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-32 for CIFAR: three stages of five basic blocks.

    Arguments as for `resnet20`; ResNet32-10 has width 160.

    References:
        He et al., 2016, section 4.2 (he2016deep); Geiping et al., 2020 (geiping2020inverting)
    """
    return _resnet(resnet32, 5, width, shortcut, classes, domain, seed)


def resnet56(
    *,
    width: int = 16,
    shortcut: ShortcutOption = "A",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-56 for CIFAR: three stages of nine basic blocks.

    Arguments as for `resnet20`.

    References:
        He et al., 2016, section 4.2 (he2016deep)
    """
    return _resnet(resnet56, 9, width, shortcut, classes, domain, seed)


def _resnet(
    factory: Callable[..., Task],
    blocks: int,
    width: int,
    shortcut: ShortcutOption,
    classes: int,
    domain: Domain,
    seed: int,
) -> Task:
    whole("width", width)
    choice("shortcut", shortcut, SHORTCUTS)
    whole("classes", classes, at_least=2)
    channels, _, _ = image_shape(factory.__name__, domain)
    options = {"width": width, "shortcut": shortcut, "classes": classes, "seed": seed}
    with seeded(seed):
        model = CifarResNet(
            blocks, width, channels=channels, classes=classes, shortcut=SHORTCUTS[shortcut]
        )
    return Task(model, cross_entropy, domain, name=call_name(factory, options))
