"""How the update follows the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch.func import vjp, vmap

from seepage.core import Observation, Rng
from seepage.threats import Simulation

# Numbers held at once while columns of the Jacobian pass by.
HELD = 2**24
# Length of a small step as a share of the point's, and how far it may land from where J says.
STEP, DISAGREEMENT = 1e-6, 0.01

Linear = Callable[[Tensor], Tensor]
Pullback = Callable[[Tensor], tuple[Tensor]]


@dataclass(frozen=True, eq=False)
class Jacobian:
    """The derivative J `(P, n)` of a function at a point, never held as a whole.

    Args:
        function: `(n,) -> (P,)`, made of differentiable torch operations.
        at: The point `(n,)`.
        vectorised: Whether `torch.func.vmap` may run several directions at once.

    Example:
        >>> double = Jacobian(lambda x: 2 * x, torch.ones(3))
        >>> double.squared(torch.eye(3)[:1])
        tensor([[4., 0., 0.]])
    """

    function: Callable[[Tensor], Tensor]
    at: Tensor
    vectorised: bool = True

    @cached_property
    def _value_and_adjoint(self) -> tuple[Tensor, Linear]:
        value, pull = cast(tuple[Tensor, Pullback], vjp(self.function, self.at))
        return value, lambda rows: pull(rows)[0]

    @cached_property
    def _forward(self) -> Linear:
        # J^T is linear, so the derivative of v -> J^T v is J^T itself, and its transpose J.
        value, adjoint = self._value_and_adjoint
        _, pull = cast(tuple[Tensor, Pullback], vjp(adjoint, torch.zeros_like(value)))
        return lambda direction: pull(direction)[0]

    @property
    def unknowns(self) -> int:
        """Number n of columns."""
        return self.at.numel()

    @property
    def equations(self) -> int:
        """Number P of rows."""
        return self._value_and_adjoint[0].numel()

    def squared(self, directions: Tensor) -> Tensor:
        """J^T J d for every row d of `(k, n)`."""
        return self._each(self._squared, directions)

    def forward(self, directions: Tensor) -> Tensor:
        """J d for every row d of `(k, n)`."""
        return self._each(self._forward, directions)

    def adjoint(self, changes: Tensor) -> Tensor:
        """J^T v for every row v of `(k, P)`."""
        return self._each(self._value_and_adjoint[1], changes)

    def _each(self, product: Linear, rows: Tensor) -> Tensor:
        over = vmap(product) if self.vectorised else _in_turn(product)
        room = max(1, HELD // self.equations)
        return torch.cat([over(some) for some in torch.split(rows, room)])

    def _squared(self, direction: Tensor) -> Tensor:
        return self._value_and_adjoint[1](self._forward(direction))

    def is_true(self) -> bool:
        """Whether a small step along a random direction changes the function as J says.

        A defense that rounds has no slope but the one it was given so that attacks can search.
        """
        direction = Rng(0).fork("step").normal((self.unknowns,), like=self.at)
        step = STEP * self.at.norm().clamp(min=1) / direction.norm() * direction
        change = (self.function(self.at + step) - self.function(self.at - step)) / 2
        said = self._forward(step)
        return bool((change - said).norm() <= DISAGREEMENT * said.norm())


def _in_turn(function: Linear) -> Linear:
    return lambda rows: torch.stack([function(row) for row in rows])


def update_jacobian(observation: Observation, inputs: Tensor, labels: Tensor) -> Jacobian | None:
    """The derivative of the simulated update in the inputs, in double precision.

    None if the simulation is not the library's own, whose precision can be raised.
    """
    simulation = observation.simulate
    if not isinstance(simulation, Simulation):
        return None
    task = simulation.task.to(dtype=torch.float64)
    exact = replace(simulation, task=task)
    soft = labels.double() if labels.is_floating_point() else labels

    def update(flat: Tensor) -> Tensor:
        return exact(flat.reshape(inputs.shape), soft).flat()

    return Jacobian(update, inputs.double().flatten(), vectorised=not task.mixes_examples)
