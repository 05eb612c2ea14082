"""The two-layer network of the theory: Gaussian weights, and a head of constants."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from seepage.core import Domain, Rng, Task, cross_entropy
from seepage.core.errors import UnknownName
from seepage.domains import CIFAR10
from seepage.zoo.arguments import choice, whole
from seepage.zoo.mlp import ACTIVATIONS, Activation
from seepage.zoo.naming import call_name
from seepage.zoo.seeding import seeded


def square_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared distance from the label's unit vector, or from its probabilities, `(B,)`."""
    if labels.ndim == 1:
        labels = nn.functional.one_hot(labels, outputs.shape[1]).to(outputs)
    return (outputs - labels).square().sum(1)


_LOSSES = {"cross_entropy": cross_entropy, "square": square_loss}


def two_layer(
    *,
    neurons: int = 4096,
    activation: Activation = "relu",
    loss: str = "cross_entropy",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """Flatten, one wide layer of random Gaussian neurons without bias, a linear head.

        f(x) = A sigma(W x),   W_jl ~ N(0, 1 / d),   A_kj ~ N(0, 1 / m^2)

    Args:
        neurons: Number m of neurons.
        activation: The function sigma.
        loss: "cross_entropy", or "square" as in the theory, on the label's unit vector.
        classes: Number K of outputs.
        domain: The space of the inputs, of any shape.
        seed: Of the weights.

    Example:
        >>> two_layer(neurons=64, activation="tanh").name
        "two_layer(neurons=64, activation='tanh')"

    Deviations:
        The theory has inputs of length one and W ~ N(0, I); inputs here have a length of about
        sqrt(d), and W is scaled to match. It has one output; here there are K.

    References:
        Liu et al., 2024, Sec. 3 (liu2024systematic)
    """
    whole("neurons", neurons)
    choice("activation", activation, ACTIVATIONS)
    if loss not in _LOSSES:
        raise UnknownName("loss", loss, _LOSSES)
    whole("classes", classes, at_least=2)
    inputs = math.prod(domain.shape)
    with seeded(seed):
        hidden, head = nn.Linear(inputs, neurons, bias=False), nn.Linear(neurons, classes)
    key = Rng(seed).fork("two layers")
    with torch.no_grad():
        hidden.weight.copy_(key.fork("hidden").normal(hidden.weight.shape) / inputs**0.5)
        head.weight.copy_(key.fork("head").normal(head.weight.shape) / neurons)
        head.bias.zero_()
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    layers.update(hidden=hidden, activation=ACTIVATIONS[activation](), head=head)
    options = {
        "neurons": neurons,
        "activation": activation,
        "loss": loss,
        "classes": classes,
        "seed": seed,
    }
    return Task(nn.Sequential(layers), _LOSSES[loss], domain, name=call_name(two_layer, options))
