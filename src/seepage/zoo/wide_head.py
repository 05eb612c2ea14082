"""ResNet-18 with a wide, mostly random layer before its head, made for feature recovery."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from seepage.core import Domain, Rng, Task, cross_entropy
from seepage.core.errors import InvalidValue
from seepage.domains.box import CIFAR10
from seepage.zoo.building import call_name, image_shape, seeded, whole
from seepage.zoo.resnet import BasicBlock, ResNet


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
            BasicBlock,
            (2, 2, 2, 2),
            stem="cifar",
            width=width,
            channels=channels,
            head=lambda features: WideHead(features, neurons, trained, classes, rng),
        )
    return Task(model, cross_entropy, domain, name=call_name(wide_head_resnet18, options))
