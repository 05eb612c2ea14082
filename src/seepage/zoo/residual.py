"""Residual blocks and the shortcuts around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import pad, relu

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


class Bottleneck(nn.Module):
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


Block = type[BasicBlock] | type[Bottleneck]


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
