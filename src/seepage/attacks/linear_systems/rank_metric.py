"""How many of a layer's inputs its equations determine: the rank metric of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.linear_systems.activations import ReLU
from seepage.attacks.linear_systems.operator import LinearSystem
from seepage.attacks.linear_systems.stack import Stack, read_stack
from seepage.attacks.linear_systems.system_rank import counted_rank, numerical_rank
from seepage.core import Rng, Task, cross_entropy
from seepage.core.errors import NotApplicable


@dataclass(frozen=True)
class LayerRank:
    """The linear system of one convolution.

    Args:
        name: Of the module.
        unknowns: Entries n of the layer's input.
        equations: Rows of u: one for each output and for each weight.
        rank: How many of them are independent.
    """

    name: str
    unknowns: int
    equations: int
    rank: int

    @property
    def deficiency(self) -> int:
        """The rank less n: zero if the input is determined, else minus what is left open."""
        return self.rank - self.unknowns


@dataclass(frozen=True)
class RankMetric:
    """The rank metric c(M) of a network with d convolutions.

        c(M) = sum_i (d - i + 1) / d (rank(u_i) - n_i) <= 0

    Zero means that every layer's equations determine its input, so that one example can be
    computed from its gradient; the lower, the more has to be guessed, above all in early layers.

    Args:
        layers: The convolutions in the order in which they run.
        forgetful: Names of those followed by a ReLU.

    References:
        Chen and Campbell, 2022, Definition 3.3 (chen2022analysing)
    """

    layers: tuple[LayerRank, ...]
    forgetful: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """c(M)."""
        depth = len(self.layers)
        weighted = ((depth - i) * layer.deficiency for i, layer in enumerate(self.layers))
        return sum(weighted) / max(depth, 1)

    @property
    def advice(self) -> str:
        """What the number means for whoever designs the network, in one sentence."""
        if self.value == 0:
            return (
                "every layer's input is determined, so one example can be computed from its "
                "gradient: share no gradient of one example, or give early layers fewer filters "
                "and wider strides"
            )
        first = self.layers[0]
        if first.deficiency < 0:
            return (
                f"{-first.deficiency} of the {first.unknowns} degrees of freedom of one example "
                f"have no equation in {first.name}, whatever follows: they can only be guessed, "
                "which a good prior may do"
            )
        worst = min(self.layers, key=lambda layer: layer.deficiency)
        return (
            f"solving layer by layer must guess {-worst.deficiency} of the {worst.unknowns} inputs "
            f"of {worst.name}, but {first.name} determines its own: matching all layers at once "
            "may still recover the example"
        )


def rank_metric(task: Task, *, numerical: bool = False) -> RankMetric:
    """The rank metric of a network of convolutions that ends in fully connected layers.

    Args:
        task: The network; one that is no such chain is refused by name.
        numerical: Compute ranks of the matrices at the network's weights and the gradient of a
            random input, instead of by `counted_rank`. Where a ReLU forgot z there is then no
            equation for it; the count takes every z for known and is an upper bound.

    Example:
        >>> from seepage.zoo import cnn
        >>> rank_metric(cnn(variant="cnn4-v1")).value
        -2772.0
    """
    stack = read_stack(task)
    convolutions = [layer for layer in stack.layers if layer.convolutional]
    if list(stack.layers[: len(convolutions)]) != convolutions:
        raise NotApplicable(
            f"expected the convolutions of {task.name} before its fully connected layers; the rank "
            "metric is not defined for another order"
        )
    systems = _systems(stack, task) if numerical else iter(())
    ranks = [numerical_rank(s) for s in systems] or [counted_rank(c) for c in convolutions]
    return RankMetric(
        tuple(
            LayerRank(layer.name, layer.inputs, layer.outputs + layer.weight.numel(), rank)
            for layer, rank in zip(convolutions, ranks, strict=True)
        ),
        tuple(c.name for c in convolutions if isinstance(c.activation, ReLU)),
    )


def _systems(stack: Stack, task: Task) -> Iterator[LinearSystem]:
    """The system of every convolution, at the gradient of a random input of the first class."""
    reference = stack.layers[0].weight
    values = task.domain.normalise(task.domain.sample(1, rng=Rng(0)).to(reference))
    linear: list[Tensor] = []
    for layer in stack.layers:
        linear.append(layer.linear(values).requires_grad_())
        values = layer.activation(linear[-1])
    loss = cross_entropy(values, torch.zeros(1, dtype=torch.int64, device=values.device)).sum()
    deltas: Sequence[Tensor] = torch.autograd.grad(loss, linear)
    for layer, z, delta in zip(stack.layers, linear, deltas, strict=True):
        if layer.convolutional:
            known = layer.activation.known(layer.activation(z.detach()))
            yield LinearSystem(layer, delta[0], known[0])
