"""The residual networks made for ImageNet, with a stem for small images too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from seepage.core import Domain, Task, cross_entropy
from seepage.domains import CIFAR10
from seepage.zoo.arguments import choice, whole
from seepage.zoo.naming import call_name
from seepage.zoo.residual import BasicBlock, Block, Bottleneck, initialise, project, stage
from seepage.zoo.seeding import seeded
from seepage.zoo.shapes import image_shape

Stem = Literal["cifar", "imagenet"]


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, the mean over pixels, a head.

    The names of the parameters are torchvision's, so that its weights load.
    """

    def __init__(
        self,
        block: Block,
        blocks: Sequence[int],
        *,
        stem: Stem,
        width: int,
        channels: int,
        head: Callable[[int], nn.Module],
    ) -> None:
        """Build the network; `head` makes the last part, given the number of features."""
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        e, (n1, n2, n3, n4) = block.expansion, blocks
        self.layer1 = stage(block, width, width, n1, stride=1, shortcut=project)
        self.layer2 = stage(block, e * width, 2 * width, n2, stride=2, shortcut=project)
        self.layer3 = stage(block, 2 * e * width, 4 * width, n3, stride=2, shortcut=project)
        self.layer4 = stage(block, 4 * e * width, 8 * width, n4, stride=2, shortcut=project)
        initialise(self)
        self.fc = head(8 * e * width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `(B, K)`."""
        hidden = self.maxpool(relu(self.bn1(self.conv1(inputs))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(hidden)))).mean((-2, -1))
        logits: Tensor = self.fc(features)
        return logits


def resnet18(
    *,
    stem: Stem = "cifar",
    width: int = 64,
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-18: basic blocks 2, 2, 2, 2 on a stem for small or for large images.

    Args:
        stem: "cifar" starts with a 3x3 convolution, "imagenet" with 7x7 of stride 2 and a
            3x3 max pooling of stride 2.
        width: Channels of the first stage; 8 times as many features reach the head.
        classes: Number of outputs.
        domain: The space of the images.
        seed: Of the weights: He's normal distribution for convolutions, PyTorch's default for
            the head.

    Example:
        >>> sum(p.numel() for p in resnet18().parameters.values())
        11173962

    References:
        He et al., 2016, Table 1 (he2016deep)
    """
    return _resnet(resnet18, BasicBlock, (2, 2, 2, 2), stem, width, classes, domain, seed)


def resnet50(
    *,
    stem: Stem = "cifar",
    width: int = 64,
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-50: bottleneck blocks 3, 4, 6, 3 on a stem for small or for large images.

    Arguments as for `resnet18`; 32 times the width reaches the head.

    Deviations:
        The 3x3 convolution of a block has the stride, as in torchvision, not the first 1x1.

    References:
        He et al., 2016, Table 1 (he2016deep)
    """
    return _resnet(resnet50, Bottleneck, (3, 4, 6, 3), stem, width, classes, domain, seed)


def resnet152(
    *,
    stem: Stem = "cifar",
    width: int = 64,
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-152: bottleneck blocks 3, 8, 36, 3 on a stem for small or for large images.

    Arguments as for `resnet18`, deviations as for `resnet50`.

    References:
        He et al., 2016, Table 1 (he2016deep)
    """
    return _resnet(resnet152, Bottleneck, (3, 8, 36, 3), stem, width, classes, domain, seed)


def _resnet(
    factory: Callable[..., Task],
    block: Block,
    blocks: Sequence[int],
    stem: Stem,
    width: int,
    classes: int,
    domain: Domain,
    seed: int,
) -> Task:
    choice("stem", stem, ("cifar", "imagenet"))
    whole("width", width)
    whole("classes", classes, at_least=2)
    channels, _, _ = image_shape(factory.__name__, domain)
    options = {"stem": stem, "width": width, "classes": classes, "seed": seed}
    with seeded(seed):
        model = ResNet(
            block,
            blocks,
            stem=stem,
            width=width,
            channels=channels,
            head=lambda features: nn.Linear(features, classes),
        )
    return Task(model, cross_entropy, domain, name=call_name(factory, options))
