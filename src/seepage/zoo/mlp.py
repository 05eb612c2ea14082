"""Fully connected networks, for inputs of any shape."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.domains import CIFAR10
from seepage.zoo.arguments import choice, whole, widths
from seepage.zoo.naming import call_name
from seepage.zoo.seeding import seeded

Activation = Literal["relu", "leaky_relu", "sigmoid", "tanh", "gelu", "softplus"]

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "relu": nn.ReLU,
        "leaky_relu": nn.LeakyReLU,
        "sigmoid": nn.Sigmoid,
        "tanh": nn.Tanh,
        "gelu": nn.GELU,
        "softplus": nn.Softplus,
    }
)


def mlp(
    *,
    hidden: Sequence[int] = (256,),
    activation: Activation = "relu",
    bias: bool = True,
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """Multi-layer perceptron: flatten, hidden layers with an activation each, a linear head.

    Args:
        hidden: Width of each hidden layer.
        activation: What follows each hidden layer.
        bias: Whether every layer, the head included, has a bias.
        classes: Number of outputs.
        domain: The space of the inputs, of any shape.
        seed: Of the weights, which have PyTorch's default distribution.

    Example:
        >>> mlp(hidden=(64, 32), activation="tanh").name
        "mlp(hidden=(64, 32), activation='tanh')"
    """
    hidden = widths("hidden", hidden)
    choice("activation", activation, ACTIVATIONS)
    whole("classes", classes, at_least=2)
    options = {
        "hidden": hidden,
        "activation": activation,
        "bias": bias,
        "classes": classes,
        "seed": seed,
    }
    with seeded(seed):
        model = _dense((math.prod(domain.shape), *hidden), classes, activation, bias=bias)
    return Task(model, cross_entropy, domain, name=call_name(mlp, options))


def fc(
    *,
    hidden: int = 4,
    activation: Activation = "sigmoid",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """One hidden layer with bias, the network whose batches n1 >= B hidden units give away.

        p_j = sum_i w2_ji sigma(w1_i . x + b1_i) + b2_j

    Args:
        hidden: Number n1 of hidden units; the paper's digits use four for a batch of four.
        activation: The function sigma.
        classes: Number of outputs.
        domain: The space of the inputs, of any shape.
        seed: Of the weights, which have PyTorch's default distribution.

    Example:
        >>> sum(p.numel() for p in fc(hidden=4).parameters.values())  # 4(3072 + 1) + 10(4 + 1)
        12342

    References:
        Qian and Hansen, 2020, Propositions 1 and 2 (qian2020what)
    """
    whole("hidden", hidden)
    choice("activation", activation, ACTIVATIONS)
    whole("classes", classes, at_least=2)
    options = {"hidden": hidden, "activation": activation, "classes": classes, "seed": seed}
    with seeded(seed):
        model = _dense((math.prod(domain.shape), hidden), classes, activation, bias=True)
    return Task(model, cross_entropy, domain, name=call_name(fc, options))


def _dense(sizes: Sequence[int], classes: int, activation: str, *, bias: bool) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (before, after) in enumerate(pairwise(sizes), start=1):
        layers[f"hidden{number}"] = nn.Linear(before, after, bias=bias)
        layers[f"activation{number}"] = ACTIVATIONS[activation]()
    layers["head"] = nn.Linear(sizes[-1], classes, bias=bias)
    return nn.Sequential(layers)
