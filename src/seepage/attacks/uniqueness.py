"""Can the input move without changing the update?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch.func import vjp, vmap

from seepage.core import Observation, Rng
from seepage.core.task import batchnorm_layers
from seepage.threats import Simulation

# The squared problem J^T J is computed to sixteen digits, so singular values below 1e-8 of the
# largest are rounding; a hundred times more is told from zero with a margin.
RESOLVED = 1e-6
# Unknowns up to which every direction is tried.
DENSE = 4_096
# Directions tried beyond it, and after how many of them it is asked whether they settle it.
STEPS, ASKED_EVERY = 600, 10
# Share of a Ritz value that its error may be before it counts as an eigenvalue.
SETTLED = 0.1
# Numbers held at once while columns of the Jacobian pass by.
HELD = 2**24

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
        over = vmap(self._squared) if self.vectorised else _in_turn(self._squared)
        room = max(1, HELD // self.equations)
        return torch.cat([over(some) for some in torch.split(directions, room)])

    def _squared(self, direction: Tensor) -> Tensor:
        return self._value_and_adjoint[1](self._forward(direction))


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

    # torch differentiates a batch's own statistics to three digits only under vmap.
    mixing = task.mode == "train" and bool(batchnorm_layers(task.model))
    return Jacobian(update, inputs.double().flatten(), vectorised=not mixing)


def full_column_rank(jacobian: Jacobian) -> bool | None:
    """Whether every direction changes the function: sigma_min(J) > 1e-6 sigma_max(J).

    Too few equations settle it at once. Up to 4096 unknowns the eigenvalues of J^T J are computed,
    beyond by the Lanczos process; None where that does not settle it.
    """
    if jacobian.equations < jacobian.unknowns:
        return False
    if jacobian.unknowns <= DENSE:
        return dense_full_rank(jacobian)
    return lanczos_full_rank(jacobian)


def dense_full_rank(jacobian: Jacobian) -> bool | None:
    """The answer from all eigenvalues of J^T J."""
    at = jacobian.at
    gram = jacobian.squared(torch.eye(jacobian.unknowns, dtype=at.dtype, device=at.device))
    if not bool(gram.isfinite().all()):
        return None
    values = torch.linalg.eigvalsh((gram + gram.T) / 2)
    return _separate(float(values[0]), float(values[-1]))


def lanczos_full_rank(jacobian: Jacobian, *, steps: int = STEPS) -> bool | None:
    """The answer from the extreme Ritz values of J^T J in a growing Krylov space.

    A Ritz value never lies below the smallest eigenvalue, so one that is zero to rounding proves
    a direction which changes nothing. One that is not is believed once its error is a tenth of
    it; a random start misses the eigenvector with probability zero.

    Args:
        jacobian: Of which only products are taken.
        steps: Directions after which it stays unknown, None.
    """
    steps = min(steps, jacobian.unknowns)
    basis = [_unit(Rng(0).fork("lanczos").normal((jacobian.unknowns,), like=jacobian.at))]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for step in range(1, steps + 1):
        (image,) = jacobian.squared(basis[-1][None])
        diagonal.append(image @ basis[-1])
        # Against the whole basis, and twice: rounding would let found directions come back.
        known = torch.stack(basis)
        for _ in range(2):
            image = image - known.T @ (known @ image)
        beside.append(image.norm())
        if step % ASKED_EVERY == 0 or step == steps:
            settled = _settled(diagonal, beside)
            if settled is not None:
                return settled
        basis.append(_unit(image))
    return None


def _settled(diagonal: list[Tensor], beside: list[Tensor]) -> bool | None:
    """What the Ritz values of the tridiagonal matrix say by now."""
    matrix = torch.diag(torch.stack(diagonal))
    if len(diagonal) > 1:
        off = torch.diag(torch.stack(beside[:-1]), 1)
        matrix = matrix + off + off.T
    if not bool(matrix.isfinite().all()):
        return None
    values, vectors = torch.linalg.eigh(matrix)
    least, most = float(values[0]), float(values[-1])
    if not _separate(least, most):
        return False
    return True if float(beside[-1] * vectors[-1, 0].abs()) <= SETTLED * least else None


def _separate(least: float, most: float) -> bool:
    return most > 0 and least > RESOLVED**2 * most


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / vector.norm()
    return unit
