"""Fully connected networks, for inputs of any shape."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.core import Domain, Rng, Task, cross_entropy
from seepage.core.errors import InvalidValue
from seepage.domains._box import CIFAR10
from seepage.zoo._build_task import build_task, require_choice, require_int

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
    if not isinstance(hidden, tuple | list) or not hidden:
        raise InvalidValue(f"expected hidden as one width per layer, e.g. (256,), got {hidden!r}")
    hidden = tuple(require_int("each width in hidden", width) for width in hidden)
    make = partial(
        _stack_linear, (math.prod(domain.shape), *hidden), classes, activation, bias=bias
    )
    options = {"hidden": hidden, "activation": activation, "bias": bias}
    return build_task(mlp, make, domain, **options, classes=classes, seed=seed)


def fc(
    *,
    hidden: int = 4,
    activation: Activation = "sigmoid",
    classes: int = 10,
    domain: Domain = CIFAR10,
    seed: int = 0,
) -> Task:
    """One hidden layer with bias: n1 >= B hidden units give away a batch of B.

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
    make = partial(_stack_linear, (math.prod(domain.shape), hidden), classes, activation, bias=True)
    options = {"hidden": hidden, "activation": activation}
    return build_task(fc, make, domain, **options, classes=classes, seed=seed)


def _stack_linear(
    sizes: Sequence[int], classes: int, activation: str, *, bias: bool
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (before, after) in enumerate(pairwise(sizes), start=1):
        layers[f"hidden{number}"] = nn.Linear(before, after, bias=bias)
        layers[f"activation{number}"] = ACTIVATIONS[activation]()
    layers["head"] = nn.Linear(sizes[-1], classes, bias=bias)
    return nn.Sequential(layers)


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
    require_choice("loss", loss, _LOSSES)
    inputs, key = math.prod(domain.shape), Rng(seed).fork("two layers")

    def make() -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        layers["hidden"] = hidden = nn.Linear(inputs, neurons, bias=False)
        layers["activation"] = ACTIVATIONS[activation]()
        layers["head"] = head = nn.Linear(neurons, classes)
        with torch.no_grad():
            hidden.weight.copy_(key.fork("hidden").normal(hidden.weight.shape) / inputs**0.5)
            head.weight.copy_(key.fork("head").normal(head.weight.shape) / neurons)
            head.bias.zero_()
        return nn.Sequential(layers)

    options = {"neurons": neurons, "activation": activation, "loss": loss}
    task = build_task(two_layer, make, domain, **options, classes=classes, seed=seed)
    return replace(task, loss=_LOSSES[loss])
