"""The walk back through a stack: from what each layer gives to what it read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.linear_systems.least_squares import minimum_norm
from seepage.attacks.linear_systems.operator import LinearSystem
from seepage.attacks.linear_systems.rank import determined
from seepage.attacks.linear_systems.stack import Stack
from seepage.core import Update
from seepage.core.errors import NotApplicable


@dataclass(frozen=True, eq=False)
class Step:
    """What became known of one layer.

    Args:
        index: Its place in the stack.
        system: u, which its input must solve.
        target: v, the right-hand side.
        x: The input, flat `(n,)`.
        exact: Whether u and v hold no error: every layer above was determined.
        determined: Whether u x = v has no other solution.
    """

    index: int
    system: LinearSystem
    target: Tensor
    x: Tensor
    exact: bool
    determined: bool


Correct = Callable[[Step], Tensor]


def as_solved(step: Step) -> Tensor:
    """No correction: the solution of least norm."""
    return step.x


def walk_back(
    stack: Stack, update: Update, delta: Tensor, *, damping: float, correct: Correct = as_solved
) -> Step:
    """Compute the input of every layer, last layer first; return what is known of the first.

    With x the input of the layer above, z = alpha^-1(x) and dL/dz = (W^T dL/dz_above) alpha'(z)
    make up this layer's system, whose solution is the next x. A fully connected layer is solved
    by its weight gradient alone, which is dz x^T.

    Args:
        stack: The network.
        update: What was observed: the gradient of one example, up to scale.
        delta: dL/dz of the last layer, in the same scale.
        damping: Of the least squares.
        correct: Improves the input of a convolutional layer before the walk goes on.

    References:
        Zhu and Blaschko, 2021, Sec. 3 (zhu2021recursive); Chen and Campbell, 2022, Eq. 2-7 and
        Lemma 3.1 (chen2022analysing)
    """
    gradients = update.descent().tensors
    # At the logits nothing is known forwards.
    z, known, exact = torch.zeros_like(delta), torch.zeros_like(delta, dtype=torch.bool), True
    for index in range(len(stack.layers) - 1, -1, -1):
        layer = stack.layers[index]
        weight, bias = layer.parameters
        if not layer.convolutional and bias in gradients:
            delta = gradients[bias].to(delta)
        if not bool(delta.any()):
            raise NotApplicable(
                f"the gradient behind {layer.name!r} is zero, so it holds nothing of the input"
            )
        system = LinearSystem(layer, delta, known)
        step = _solved(index, system, z, gradients[weight].to(delta), damping, exact=exact)
        if layer.convolutional:
            step = replace(step, x=correct(step))
        if index == 0:
            return step
        below = stack.layers[index - 1]
        x = step.x.reshape(below.output_shape)
        z, known = below.activation.inverse(x), below.activation.known(x)
        arriving = system.input_gradient().reshape(below.output_shape)
        delta = arriving * below.activation.derivative(z)
        exact = exact and step.determined
    raise AssertionError("a stack has at least one layer")


def _solved(
    index: int, system: LinearSystem, z: Tensor, gradient: Tensor, damping: float, *, exact: bool
) -> Step:
    target = system.right_hand_side(z, gradient)
    if system.layer.convolutional:
        x = minimum_norm(system, target, damping=damping)
    else:
        x = gradient.T @ system.delta / system.delta.square().sum()
    return Step(index, system, target, x, exact, determined(system))
