"""Residual networks for CIFAR and ImageNet, and ResNet-18 with a wide random head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from seepage.core import Domain, Rng, Task, cross_entropy
from seepage.core.errors import InvalidValue
from seepage.domains.box import CIFAR10
from seepage.zoo.building import call_name, choice, image_shape, seeded, whole

Shortcut = Callable[[int, int, int], nn.Module]
"""`(channels in, channels out, stride)` to the module on the shortcut."""


class _SubsampleAndPad(nn.Module):
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


class _BasicBlock(nn.Module):
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


class _BottleneckBlock(nn.Module):
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


Block = type[_BasicBlock] | type[_BottleneckBlock]


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


def _initialise(model: nn.Module) -> None:
    """Draw every convolution from He's normal distribution for the gradients' variance."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _conv3x3(before: int, after: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


ShortcutOption = Literal["A", "B"]

SHORTCUTS: Mapping[str, Shortcut] = MappingProxyType({"A": _SubsampleAndPad, "B": project})


class _CifarResNet(nn.Module):
    """A 3x3 convolution, three stages of n basic blocks, the mean over pixels, a linear head."""

    def __init__(
        self, blocks: int, width: int, *, channels: int, classes: int, shortcut: Shortcut
    ) -> None:
        """Build the network with stages of one, two and four times the width."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(_BasicBlock, width, width, blocks, stride=1, shortcut=shortcut)
        self.layer2 = stage(_BasicBlock, width, 2 * width, blocks, stride=2, shortcut=shortcut)
        self.layer3 = stage(_BasicBlock, 2 * width, 4 * width, blocks, stride=2, shortcut=shortcut)
        self.linear = nn.Linear(4 * width, classes)
        _initialise(self)

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
        model = _CifarResNet(
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
        _initialise(self)
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
    return _imagenet_resnet(resnet18, _BasicBlock, (2, 2, 2, 2), stem, width, classes, domain, seed)


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
        resnet50, _BottleneckBlock, (3, 4, 6, 3), stem, width, classes, domain, seed
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
        resnet152, _BottleneckBlock, (3, 8, 36, 3), stem, width, classes, domain, seed
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


class WideHead(nn.Module):
    """A sigma(W z): the first `trained` neurons are to be trained, the others stay random.

    They have a gradient as all others do, which is what a client shares; a server that trains the
    network leaves them as they were drawn (`random_weights`).
    """

    def __init__(self, features: int, neurons: int, trained: int, classes: int, rng: Rng) -> None:
        """Draw the random neurons from the key, everything else as PyTorch does."""
        super().__init__()
        self.trained = trained
        self.hidden = nn.Linear(features, neurons, bias=False)
        self.head = nn.Linear(neurons, classes)
        random = neurons - trained
        with torch.no_grad():
            weight = self.hidden.weight
            weight[trained:] = rng.normal((random, features), like=weight) / features**0.5
            self.head.weight[:, trained:] = torch.arange(1, classes + 1)[:, None] / random

    def forward(self, features: Tensor) -> Tensor:
        """Return logits `(B, K)`."""
        logits: Tensor = self.head(relu(self.hidden(features)))
        return logits


def random_weights(model: nn.Module) -> list[Tensor]:
    """The weights of random neurons in a network, which share its memory.

    Example:
        >>> task = wide_head_resnet18(width=2, neurons=64, trained=16)
        >>> [tuple(weights.shape) for weights in random_weights(task.model)]
        [(48, 16), (10, 48)]
    """
    heads = [module for module in model.modules() if isinstance(module, WideHead)]
    rows = [head.hidden.weight.detach()[head.trained :] for head in heads]
    return rows + [head.head.weight.detach()[:, head.trained :] for head in heads]


def wide_head_resnet18(
    *,
    neurons: int = 16384,
    trained: int = 2048,
    head_seed: int = 0,
    width: int = 64,
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-18 with a wide layer before its head, of trained and of random Gaussian neurons.

        f(x) = A relu(W z(x)),   W = [W1; W2],   A = [A1, A2]

    W2 has v = neurons - trained rows drawn from N(0, I/d), and row i of A2 is the constant i/v, as
    the tensor method asks for; W1 and A1 have an ordinary initialisation, to be trained. The d
    features z of an input can then be recovered from the gradient of A2. `utility.train` leaves
    W2 and A2 alone.

    Args:
        neurons: Number m of neurons in the wide layer; the paper's is 512 x 32.
        trained: Number m - v of neurons that come first and are not random.
        head_seed: Of the random neurons alone.
        width: Channels of ResNet-18's first stage; 8 times as many features reach the wide layer.
        classes: Number K of outputs.
        domain: The space of the images.
        seed: Of all other weights.

    Example:
        >>> task = wide_head_resnet18(width=2, neurons=64, trained=16)
        >>> task.parameters["fc.head.weight"][1, 16:].unique()  # 2 / 48
        tensor([0.0417])

    Deviations:
        The paper contradicts itself on the trained neurons, 4096 or 2048 in all experiments; the
        default is the latter. Its theory has N(0, I) and inputs of length one; features are about
        sqrt(d) long, so the rows of W2 are divided by that. Otherwise logit i begins at about
        0.4 i sqrt(d), and training shrinks the features to nothing before it learns. The paper
        puts W2 and A2 in after the training; here they are there all along and stay, so that the
        network attacked is the one that was trained. Rows are numbered from 1, so that none of A2
        is zero. The wide layer has no bias, as in the formula; the head keeps ResNet-18's.

    References:
        Liu et al., 2024, appendix F (liu2024systematic)
    """
    whole("neurons", neurons)
    whole("trained", trained, at_least=0)
    if trained >= neurons:
        raise InvalidValue(
            f"expected fewer trained neurons than the {neurons} there are, got {trained!r}; "
            "at least one must be random"
        )
    whole("head_seed", head_seed, at_least=0)
    whole("width", width)
    whole("classes", classes, at_least=2)
    channels, _, _ = image_shape("wide_head_resnet18", domain)
    rng = Rng(head_seed).fork("wide head")
    options = {
        "neurons": neurons,
        "trained": trained,
        "head_seed": head_seed,
        "width": width,
        "classes": classes,
        "seed": seed,
    }
    with seeded(seed):
        model = ResNet(
            _BasicBlock,
            (2, 2, 2, 2),
            stem="cifar",
            width=width,
            channels=channels,
            head=lambda features: WideHead(features, neurons, trained, classes, rng),
        )
    return Task(model, cross_entropy, domain, name=call_name(wide_head_resnet18, options))
