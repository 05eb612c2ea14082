"""The walk back through a stack: from what each layer gives to what it read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.linear_systems.linear_system import LinearSystem, covered
from seepage.core import Update
from seepage.core.errors import NotApplicable
from seepage.core.rng import Rng
from seepage.numerics.least_squares import minimum_norm
from seepage.probing.layer_stack import Layer, Stack

_TOLERANCE = 1e-3


def determined(system: LinearSystem) -> Tensor:
    """Whether u x = v has at most one solution, which is whether u has full column rank, `(...)`.

    If anything lies outside the row space of u, a random vector r does, in part; so solving
    u x = u r and getting r back shows that nothing does.
    """
    axes = tuple(range(-len(system.layer.output_shape), 0))
    alive = system.delta.abs().amax(axes) > 0
    if not system.layer.convolutional:
        return alive
    rows, columns = system.shape
    if rows < columns or covered(system.layer) < columns:
        return torch.zeros_like(alive)
    r = Rng(0).normal((columns,), like=system.delta).expand(*alive.shape, columns)
    lost = torch.linalg.vector_norm(minimum_norm(system, system.apply(r)) - r, dim=-1)
    nothing: Tensor = lost < _TOLERANCE * torch.linalg.vector_norm(r, dim=-1)
    return nothing


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

    @property
    def settled(self) -> bool:
        """Whether all solutions explain the update alike: u and v hold no error, z no gap.

        Then each gives the same z, so the same gradients above, and the same dL/dw here.
        """
        known = self.system.known
        return self.exact and (known is None or bool(known.all()))


@dataclass(frozen=True, eq=False)
class Walk:
    """Where one walk begins.

    Args:
        update: What was observed: the gradient of one example, up to scale.
        delta: dL/dz of the last layer, in the same scale.
    """

    update: Update
    delta: Tensor


# Improve the input of one convolutional layer before the walks go on: one input for each walk.
Correct = Callable[[Sequence[Step]], Sequence[Tensor]]


def as_solved(steps: Sequence[Step]) -> list[Tensor]:
    """No correction: the solutions of least norm."""
    return [step.x for step in steps]


def walk_back(
    stack: Stack, walks: Sequence[Walk], *, damping: float, correct: Correct = as_solved
) -> list[Step]:
    """Compute the input of every layer, last layer first; return what is known of the first.

    With x the input of the layer above, z = alpha^-1(x) and dL/dz = (W^T dL/dz_above) alpha'(z)
    make up this layer's system, whose solution is the next x. A fully connected layer is solved
    by its weight gradient alone, which is dz x^T. All walks go side by side.

    Args:
        stack: The network.
        walks: Where to begin.
        damping: Of the least squares.
        correct: Improves the inputs of a convolutional layer before the walks go on.

    References:
        Zhu and Blaschko, 2021, Sec. 3 (zhu2021recursive); Chen and Campbell, 2022, Eq. 2-7 and
        Lemma 3.1 (chen2022analysing)
    """
    gradients = [walk.update.descent().tensors for walk in walks]
    known = [_at_the_logits(walk.delta) for walk in walks]
    for index in range(len(stack.layers) - 1, -1, -1):
        layer = stack.layers[index]
        steps = _solved(index, layer, known, gradients, damping)
        if layer.convolutional:
            better = correct(steps)
            steps = [replace(s, x=x) for s, x in zip(steps, better, strict=True)]
        if index == 0:
            return steps
        known = [_below(stack.layers[index - 1], step) for step in steps]
    raise AssertionError("a stack has at least one layer")


@dataclass(frozen=True, eq=False)
class _Known:
    """What one walk knows of a layer's output: z, where, dL/dz, and whether without error."""

    z: Tensor
    where: Tensor
    delta: Tensor
    exact: bool


def _at_the_logits(delta: Tensor) -> _Known:
    """Nothing is known forwards."""
    return _Known(torch.zeros_like(delta), torch.zeros_like(delta, dtype=torch.bool), delta, True)


def _below(below: Layer, step: Step) -> _Known:
    """What the input of a layer says of the output of the one below."""
    x = step.x.reshape(below.output_shape)
    z = below.activation.inverse(x)
    arriving = step.system.input_gradient().reshape(below.output_shape)
    delta = arriving * below.activation.derivative(z)
    return _Known(z, below.activation.known(x), delta, step.exact and step.determined)


def _solved(
    index: int,
    layer: Layer,
    known: Sequence[_Known],
    gradients: Sequence[Mapping[str, Tensor]],
    damping: float,
) -> list[Step]:
    """The layer's system of every walk, all solved at once."""
    weight, bias = layer.parameters
    systems, targets = [], []
    for above, gradient in zip(known, gradients, strict=True):
        delta = above.delta
        if not layer.convolutional and bias in gradient:
            delta = gradient[bias].to(delta)
        if not bool(delta.any()):
            raise NotApplicable(
                f"the gradient behind {layer.name!r} is zero, so it holds nothing of the input"
            )
        system = LinearSystem(layer, delta, above.where)
        systems.append(system)
        targets.append(system.right_hand_side(above.z, gradient[weight].to(delta)))
    together = LinearSystem.of_all(systems)
    if layer.convolutional:
        solutions = minimum_norm(together, torch.stack(targets), damping=damping)
    else:
        deltas = together.delta
        outer = torch.stack([gradient[weight].to(deltas) for gradient in gradients])
        solutions = (outer.mT @ deltas[..., None])[..., 0] / deltas.square().sum(1, keepdim=True)
    certain = determined(together).tolist()
    return [
        Step(index, system, target, x, above.exact, sure)
        for system, target, x, above, sure in zip(
            systems, targets, solutions, known, certain, strict=True
        )
    ]
