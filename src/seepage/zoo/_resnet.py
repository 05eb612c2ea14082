"""Residual networks for CIFAR and ImageNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from seepage.core import Domain, Task
from seepage.domains._box import CIFAR10
from seepage.zoo._build_task import build_task, require_image_shape
from seepage.zoo._convnets import Pooling

Shortcut = Callable[[int, int, int], nn.Module]
"""`(channels in, channels out, stride)` to the module on the shortcut."""


class _SubsampleAndPad(nn.Module):
    """Option A: drop pixels and add channels of zeros, without parameters."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.front = (after - before) // 2
        self.back = after - before - self.front

    def forward(self, inputs: Tensor) -> Tensor:
        kept = inputs[..., :: self.stride, :: self.stride]
        return pad(kept, (0, 0, 0, 0, self.front, self.back))


def _project_channels(before: int, after: int, stride: int) -> nn.Module:
    """Option B: a 1x1 convolution with batch normalisation."""
    convolution = nn.Conv2d(before, after, 1, stride=stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, before: int, channels: int, stride: int, shortcut: nn.Module) -> None:
        """Build the block; `before` are its channels in, `channels` those out."""
        super().__init__()
        self.conv1 = _conv3x3(before, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels, 1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the features of the next block."""
        hidden = relu(self.bn1(self.conv1(inputs)))
        return relu(self.bn2(self.conv2(hidden)) + self.downsample(inputs))


class _BottleneckBlock(nn.Module):
    """A 3x3 convolution between two 1x1 ones, beside a shortcut; four times the channels out."""

    expansion: ClassVar[int] = 4

    def __init__(self, before: int, channels: int, stride: int, shortcut: nn.Module) -> None:
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
        hidden = relu(self.bn1(self.conv1(inputs)))
        hidden = relu(self.bn2(self.conv2(hidden)))
        return relu(self.bn3(self.conv3(hidden)) + self.downsample(inputs))


class PreactivationBlock(nn.Module):
    """Two 3x3 convolutions, each behind its normalisation and ReLU; none follows the sum."""

    expansion: ClassVar[int] = 1

    def __init__(self, before: int, channels: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = _conv3x3(before, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels, 1)
        self.downsample = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the features of the next block; a projection sees them activated."""
        active = relu(self.bn1(inputs))
        around = inputs if isinstance(self.downsample, nn.Identity) else self.downsample(active)
        hidden: Tensor = self.conv2(relu(self.bn2(self.conv1(active))))
        return hidden + around


def _project_alone(before: int, after: int, stride: int) -> nn.Module:
    """A 1x1 convolution, which the block's own normalisation precedes."""
    return nn.Conv2d(before, after, 1, stride=stride, bias=False)


Block = type[BasicBlock] | type[_BottleneckBlock] | type[PreactivationBlock]


def _make_stages(
    block: Block, width: int, blocks: Sequence[int], shortcut: Shortcut
) -> list[nn.Sequential]:
    """Make stages of 1, 2, 4, ... times the width; all but the first halve the resolution.

    The first block of a stage has the stride and, if shapes differ, a shortcut with channels added.
    """
    stages, before = [], width
    for number, count in enumerate(blocks):
        channels, stride = width * 2**number, 1 if number == 0 else 2
        after = channels * block.expansion
        same = stride == 1 and before == after
        around = nn.Identity() if same else shortcut(before, after, stride)
        first = block(before, channels, stride, around)
        rest = (block(after, channels, 1, nn.Identity()) for _ in range(count - 1))
        stages.append(nn.Sequential(first, *rest))
        before = after
    return stages


def _initialise(model: nn.Module) -> None:
    """Draw every convolution from He's normal distribution for the gradients' variance."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _conv3x3(before: int, after: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


def _pool_pixels(features: Tensor, pooling: Pooling) -> Tensor:
    """One number per channel, `(B, C)`; pixels that share a maximum share its gradient."""
    return features.amax((-2, -1)) if pooling == "max" else features.mean((-2, -1))


ShortcutOption = Literal["A", "B"]

_SHORTCUTS: dict[str, Shortcut] = {"A": _SubsampleAndPad, "B": _project_channels}


class _CifarResNet(nn.Module):
    """A 3x3 convolution, three stages of n basic blocks, a pooling over pixels, a linear head."""

    def __init__(
        self,
        blocks: int,
        *,
        channels: int,
        width: int,
        shortcut: ShortcutOption,
        pooling: Pooling,
        classes: int,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.conv1 = _conv3x3(channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        stages = _make_stages(BasicBlock, width, (blocks,) * 3, _SHORTCUTS[shortcut])
        self.layer1, self.layer2, self.layer3 = stages
        self.linear = nn.Linear(4 * width, classes)
        _initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = relu(self.bn1(self.conv1(inputs)))
        features = self.layer3(self.layer2(self.layer1(hidden)))
        logits: Tensor = self.linear(_pool_pixels(features, self.pooling))
        return logits


def resnet20(
    *,
    width: int = 16,
    shortcut: ShortcutOption = "A",
    pooling: Pooling = "average",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-20 for CIFAR: three stages of three basic blocks.

    Args:
        width: Channels of the first stage: 16 as published, 64 in ResNet20-4.
        shortcut: "A" subsamples and pads with zeros, "B" projects with 1x1 convolutions, as the
            code of Inverting Gradients does.
        pooling: What the last pooling takes over all pixels, "average" or "max".
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
    options = {"width": width, "shortcut": shortcut, "pooling": pooling, "classes": classes}
    return _cifar_resnet(resnet20, 3, domain, **options, seed=seed)


def resnet32(
    *,
    width: int = 16,
    shortcut: ShortcutOption = "A",
    pooling: Pooling = "average",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-32 for CIFAR: three stages of five basic blocks.

    Arguments as for `resnet20`; ResNet32-10 has width 160.

    References:
        He et al., 2016, section 4.2 (he2016deep); Geiping et al., 2020 (geiping2020inverting)
    """
    options = {"width": width, "shortcut": shortcut, "pooling": pooling, "classes": classes}
    return _cifar_resnet(resnet32, 5, domain, **options, seed=seed)


def resnet56(
    *,
    width: int = 16,
    shortcut: ShortcutOption = "A",
    pooling: Pooling = "average",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-56 for CIFAR: three stages of nine basic blocks.

    Arguments as for `resnet20`.

    References:
        He et al., 2016, section 4.2 (he2016deep)
    """
    options = {"width": width, "shortcut": shortcut, "pooling": pooling, "classes": classes}
    return _cifar_resnet(resnet56, 9, domain, **options, seed=seed)


def _cifar_resnet(
    factory: Callable[..., Task],
    blocks: int,
    domain: Domain,
    *,
    seed: int,
    **options: Any,  # noqa: ANN401
) -> Task:
    def make() -> nn.Module:
        channels, _, _ = require_image_shape(factory.__name__, domain)
        return _CifarResNet(blocks, channels=channels, **options)

    return build_task(factory, make, domain, **options, seed=seed)


Stem = Literal["cifar", "imagenet"]


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, a pooling over pixels, a head.

    Unless blocks normalise first, parameters have torchvision's names, so that its weights load.
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
        pooling: Pooling = "average",
    ) -> None:
        """Build the network; `head` makes the last part, given the number of features."""
        super().__init__()
        self.pooling = pooling
        large = stem == "imagenet"
        kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
        self.conv1 = nn.Conv2d(channels, width, kernel, stride, padding, bias=False)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        around = _project_alone if block is PreactivationBlock else _project_channels
        stages = _make_stages(block, width, blocks, around)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        if block is not PreactivationBlock:
            _initialise(self)
        self.fc = head(8 * block.expansion * width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `(B, K)`."""
        hidden = self.maxpool(relu(self.bn1(self.conv1(inputs))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        logits: Tensor = self.fc(_pool_pixels(features, self.pooling))
        return logits


def resnet18(
    *,
    stem: Stem = "cifar",
    width: int = 64,
    preactivation: bool = False,
    pooling: Pooling = "average",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-18: basic blocks 2, 2, 2, 2 on a stem for small or for large images.

    Args:
        stem: "cifar" starts with a 3x3 convolution, "imagenet" with 7x7 of stride 2 and a
            3x3 max pooling of stride 2.
        width: Channels of the first stage; 8 times as many features reach the head, and 32 times
            as many in ResNet-50 and ResNet-152.
        preactivation: Blocks normalise before they convolve, and nothing follows their sum, the
            last included: the ResNet-18 of GradAttack's code. Its convolutions are drawn by
            PyTorch's default, which keeps the sums six times smaller in variance.
        pooling: What the last pooling takes over all pixels, "average" or "max".
        classes: Number of outputs.
        domain: The space of the images.
        seed: Of the weights: He's normal distribution for convolutions, PyTorch's default for
            the head.

    Example:
        >>> sum(p.numel() for p in resnet18().parameters.values())
        11173962

    References:
        He et al., 2016, Table 1 (he2016deep); Huang et al., 2021 (huang2021evaluating)
    """
    options = {"stem": stem, "width": width, "pooling": pooling, "classes": classes, "seed": seed}
    options |= {"preactivation": True} if preactivation else {}
    block = PreactivationBlock if preactivation else BasicBlock
    return _imagenet_resnet(resnet18, block, (2, 2, 2, 2), domain, **options)


def resnet50(
    *,
    stem: Stem = "cifar",
    width: int = 64,
    pooling: Pooling = "average",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-50: bottleneck blocks 3, 4, 6, 3 on a stem for small or for large images.

    Arguments as for `resnet18`.

    Deviations:
        The 3x3 convolution of a block has the stride, as in torchvision, not the first 1x1.

    References:
        He et al., 2016, Table 1 (he2016deep)
    """
    options = {"stem": stem, "width": width, "pooling": pooling, "classes": classes, "seed": seed}
    return _imagenet_resnet(resnet50, _BottleneckBlock, (3, 4, 6, 3), domain, **options)


def resnet152(
    *,
    stem: Stem = "cifar",
    width: int = 64,
    pooling: Pooling = "average",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-152: bottleneck blocks 3, 8, 36, 3 on a stem for small or for large images.

    Arguments as for `resnet18`, deviations as for `resnet50`.

    References:
        He et al., 2016, Table 1 (he2016deep)
    """
    options = {"stem": stem, "width": width, "pooling": pooling, "classes": classes, "seed": seed}
    return _imagenet_resnet(resnet152, _BottleneckBlock, (3, 8, 36, 3), domain, **options)


def _imagenet_resnet(
    factory: Callable[..., Task],
    block: Block,
    blocks: Sequence[int],
    domain: Domain,
    **options: Any,  # noqa: ANN401
) -> Task:
    def make() -> nn.Module:
        channels, _, _ = require_image_shape(factory.__name__, domain)
        head = partial(nn.Linear, out_features=options["classes"])
        stem, width, pooling = options["stem"], options["width"], options["pooling"]
        return ResNet(
            block, blocks, stem=stem, width=width, channels=channels, head=head, pooling=pooling
        )

    return build_task(factory, make, domain, **options)
