"""Residual blocks and the shortcuts around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from seepage.core import Domain, Task, cross_entropy
from seepage.domains.box import CIFAR10
from seepage.zoo.building import call_name, choice, image_shape, seeded, whole

Shortcut = Callable[[int, int, int], nn.Module]
"""`(channels in, channels out, stride)` to the module on the shortcut."""


class SubsampleAndPad(nn.Module):
    """Option A: drop pixels and add channels of zeros, without parameters."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        """Keep the numbers; the new channels are split evenly before and after the old ones."""
        super().__init__()
        self.stride = stride
        self.front = (after - before) // 2
        self.back = after - before - self.front

    def forward(self, inputs: Tensor) -> Tensor:
        """Subsample and pad."""
        kept = inputs[..., :: self.stride, :: self.stride]
        return pad(kept, (0, 0, 0, 0, self.front, self.back))


def project(before: int, after: int, stride: int) -> nn.Module:
    """Option B: a 1x1 convolution with batch normalisation."""
    convolution = nn.Conv2d(before, after, 1, stride=stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, before: int, channels: int, stride: int, shortcut: nn.Module) -> None:
        """Build the block; the first convolution has the stride."""
        super().__init__()
        self.conv1 = _conv3x3(before, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels, 1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Add what the convolutions make of the inputs to the shortcut."""
        hidden = relu(self.bn1(self.conv1(inputs)))
        return relu(self.bn2(self.conv2(hidden)) + self.downsample(inputs))


class BottleneckBlock(nn.Module):
    """A 3x3 convolution between two 1x1 ones, beside a shortcut; four times as many come out."""

    expansion: ClassVar[int] = 4

    def __init__(self, before: int, channels: int, stride: int, shortcut: nn.Module) -> None:
        """Build the block; the 3x3 convolution has the stride."""
        super().__init__()
        after = channels * self.expansion
        self.conv1 = nn.Conv2d(before, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Add what the convolutions make of the inputs to the shortcut."""
        hidden = relu(self.bn1(self.conv1(inputs)))
        hidden = relu(self.bn2(self.conv2(hidden)))
        return relu(self.bn3(self.conv3(hidden)) + self.downsample(inputs))


Block = type[BasicBlock] | type[BottleneckBlock]


def stage(
    block: Block, before: int, channels: int, blocks: int, *, stride: int, shortcut: Shortcut
) -> nn.Sequential:
    """Blocks at one resolution; the first has the stride and, where shapes differ, a shortcut."""
    after = channels * block.expansion
    same = stride == 1 and before == after
    around = nn.Identity() if same else shortcut(before, after, stride)
    first = block(before, channels, stride, around)
    rest = (block(after, channels, 1, nn.Identity()) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


def initialise(model: nn.Module) -> None:
    """Draw every convolution from He's normal distribution for the gradients' variance."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _conv3x3(before: int, after: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


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
    return _cifar_resnet(resnet20, 3, width, shortcut, classes, domain, seed)


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
    return _cifar_resnet(resnet32, 5, width, shortcut, classes, domain, seed)


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
    return _cifar_resnet(resnet56, 9, width, shortcut, classes, domain, seed)


def _cifar_resnet(
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
    return _imagenet_resnet(resnet18, BasicBlock, (2, 2, 2, 2), stem, width, classes, domain, seed)


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
    return _imagenet_resnet(
        resnet50, BottleneckBlock, (3, 4, 6, 3), stem, width, classes, domain, seed
    )


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
    return _imagenet_resnet(
        resnet152, BottleneckBlock, (3, 8, 36, 3), stem, width, classes, domain, seed
    )


def _imagenet_resnet(
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
