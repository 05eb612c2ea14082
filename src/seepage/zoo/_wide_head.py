"""ResNet-18 with a wide layer of random neurons before its head, as the tensor method needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from seepage.core import Domain, Rng, Task
from seepage.core.errors import InvalidValue, require_positive
from seepage.domains._box import CIFAR10
from seepage.zoo._build_task import build_task, require_image_shape, require_int
from seepage.zoo._resnet import BasicBlock, PreactivationBlock, ResNet


class WideHead(nn.Module):
    """A sigma(W z), in which the first `trained` neurons are trained and the others stay random.

    Random neurons have gradients too, which a client shares. A server that trains the network
    leaves them as they were drawn (`random_weights`).
    """

    def __init__(
        self,
        features: int,
        neurons: int,
        trained: int,
        classes: int,
        rng: Rng,
        deviation: float | None = None,
    ) -> None:
        """Draw the random neurons from the key, and the rest as PyTorch does."""
        super().__init__()
        self.trained = trained
        self.hidden = nn.Linear(features, neurons, bias=False)
        self.head = nn.Linear(neurons, classes)
        random = neurons - trained
        with torch.no_grad():
            weight = self.hidden.weight
            spread = features**-0.5 if deviation is None else deviation
            weight[trained:] = spread * rng.normal((random, features), like=weight)
            self.head.weight[:, trained:] = torch.arange(1, classes + 1)[:, None] / random

    def forward(self, features: Tensor) -> Tensor:
        """Return logits `(B, K)`."""
        logits: Tensor = self.head(relu(self.hidden(features)))
        return logits


def random_weights(model: nn.Module) -> list[Tensor]:
    """Views of the weights of a network's random neurons.

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
    deviation: float | None = None,
    head_seed: int = 0,
    width: int = 64,
    preactivation: bool = False,
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """ResNet-18 with a wide layer of trained and random Gaussian neurons before its head.

        f(x) = A relu(W z(x)),   W = [W1; W2],   A = [A1, A2]

    W2 has v = neurons - trained rows drawn from N(0, I/d), and row i of A2 is the constant i/v, as
    the tensor method needs. W1 and A1 are initialised as usual and trained. The d features z of an
    input can then be recovered from the gradient of A2. `utility.train` keeps W2 and A2 fixed.

    Args:
        neurons: Number m of neurons in the wide layer; the paper's is 512 x 32.
        trained: Number m - v of neurons that are not random; they come first.
        deviation: Of the entries of W2; 1 / sqrt(d) if None, 1 in the paper.
        head_seed: Of the random neurons only.
        width: Channels of ResNet-18's first stage; 8 times as many features reach the wide layer.
        preactivation: As for `resnet18`; features are then negative too.
        classes: Number K of outputs.
        domain: The space of the images.
        seed: Of all other weights.

    Example:
        >>> task = wide_head_resnet18(width=2, neurons=64, trained=16)
        >>> task.parameters["fc.head.weight"][1, 16:].unique()  # 2 / 48
        tensor([0.0417])

    Deviations:
        The paper states both 4096 and 2048 trained neurons for all experiments; the default is
        2048. Its theory has N(0, I) and inputs of length one; features are about sqrt(d) long, so
        the rows of W2 are divided by that. Otherwise logit i starts at about 0.4 i sqrt(d), and
        training shrinks the features to nothing before it learns. The paper adds W2 and A2 after
        training; here they are present from the start, so that the attacked network is the one
        that was trained; `deviation=1` is for networks to which they are added afterwards. Rows
        are numbered from 1, so that no row of A2 is zero. The wide layer has no bias, as in the
        formula; the head keeps ResNet-18's.

    References:
        Liu et al., 2024, appendix F (liu2024systematic)
    """
    if require_int("trained", trained, at_least=0) >= require_int("neurons", neurons):
        raise InvalidValue(
            f"expected fewer trained neurons than the {neurons} there are, got {trained!r}; "
            "at least one must be random"
        )

    def make() -> nn.Module:
        channels, _, _ = require_image_shape("wide_head_resnet18", domain)
        rng = Rng(head_seed).fork("wide head")
        head = lambda features: WideHead(  # noqa: E731
            features, neurons, trained, classes, rng, deviation
        )
        block = PreactivationBlock if preactivation else BasicBlock
        blocks = (2, 2, 2, 2)
        return ResNet(block, blocks, stem="cifar", width=width, channels=channels, head=head)

    require_positive(deviation=deviation)
    options: dict[str, float] = {"neurons": neurons, "trained": trained}
    options |= {"head_seed": head_seed, "width": width}
    options |= {} if deviation is None else {"deviation": deviation}
    options |= {"preactivation": True} if preactivation else {}
    return build_task(wide_head_resnet18, make, domain, **options, classes=classes, seed=seed)
