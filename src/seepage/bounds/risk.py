"""Inversion influence: how far a small change of the update moves what is recovered."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from seepage.attacks.jacobian import Jacobian
from seepage.bounds.information import largest_eigenvalue, person_jacobians, squared_norm
from seepage.clients.client import Client
from seepage.core import Batch, Rng, Task
from seepage.core.errors import InvalidValue
from seepage.core.plugins import Catalogue
from seepage.core.rng import require_key


@dataclass(frozen=True, kw_only=True)
class InversionInfluence:
    """Where the best guess goes when the update changes by noise delta of deviation one.

        ||(J^T J + eps I)^-1 J^T delta|| / sqrt(d),   eps = damping * lambda_max(J^T J)

    Args:
        damping: eps as a share of the largest eigenvalue; it also ends the conjugate gradients.
        iterations: Of conjugate gradients and of the power iteration, two products each.
        draws: Changes delta that are averaged over.

    Deviations:
        The paper's eps is a constant; a share of lambda_max means the same for every network.

    References:
        Zhang et al., 2023 (zhang2023understanding), the inversion influence function
    """

    name: ClassVar[str] = "inversion_influence"
    higher_leaks_more: ClassVar[bool] = False

    damping: float = 1e-4
    iterations: int = 20
    draws: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not self.damping > 0:
            raise InvalidValue(f"expected damping > 0, got {self.damping!r}")
        _check(self.iterations, self.draws)

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """Solve a damped system per person and change."""
        require_key(rng)
        return _each(client, task, batch, rng, self._influence)

    def _influence(self, jacobian: Jacobian, rng: Rng) -> float:
        top = largest_eigenvalue(jacobian, iterations=self.iterations, rng=rng.fork("power"))
        if top == 0:
            return math.inf
        pulled = jacobian.adjoint(_changes(jacobian, self.draws, rng))
        moved = _solve(jacobian, pulled, damping=self.damping * top, iterations=self.iterations)
        return _root_mean_square(moved)


@dataclass(frozen=True, kw_only=True)
class InfluenceFloor:
    """The cheap lower bound of inversion influence: one product per change, and a power iteration.

        ||J^T delta|| / (lambda_max(J^T J) sqrt(d))

    Args:
        iterations: Of the power iteration, two products each.
        draws: Changes delta, of deviation one, that are averaged over.

    References:
        Zhang et al., 2023 (zhang2023understanding), the lower bound of the influence
    """

    name: ClassVar[str] = "influence_floor"
    higher_leaks_more: ClassVar[bool] = False

    iterations: int = 10
    draws: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        _check(self.iterations, self.draws)

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """A few products per person."""
        require_key(rng)
        return _each(client, task, batch, rng, self._floor)

    def _floor(self, jacobian: Jacobian, rng: Rng) -> float:
        top = largest_eigenvalue(jacobian, iterations=self.iterations, rng=rng.fork("power"))
        if top == 0:
            return math.inf
        return _root_mean_square(jacobian.adjoint(_changes(jacobian, self.draws, rng)) / top)


def _each(
    client: Client, task: Task, batch: Batch, rng: Rng, score: Callable[[Jacobian, Rng], float]
) -> Tensor:
    jacobians = person_jacobians(client, task, batch)
    found = [score(jacobian, rng.fork(person)) for person, jacobian in enumerate(jacobians)]
    return torch.tensor(found, dtype=torch.float64)


def _changes(jacobian: Jacobian, draws: int, rng: Rng) -> Tensor:
    return rng.fork("delta").normal((draws, jacobian.equations), like=jacobian.at)


def _root_mean_square(moved: Tensor) -> float:
    return float(moved.square().mean().sqrt())


def _solve(jacobian: Jacobian, wanted: Tensor, *, damping: float, iterations: int) -> Tensor:
    """(J^T J + damping I)^-1 for every row, by conjugate gradients.

    References:
        Hestenes and Stiefel, 1952 (hestenes1952methods)
    """
    found = torch.zeros_like(wanted)
    left = direction = wanted
    size = left.square().sum(1, keepdim=True)
    for _ in range(iterations):
        image = jacobian.squared(direction) + damping * direction
        curvature = (direction * image).sum(1, keepdim=True)
        # A row that is solved has nothing left, and takes no further step.
        step = torch.where(curvature > 0, size / curvature, 0.0)
        found, left = found + step * direction, left - step * image
        before, size = size, left.square().sum(1, keepdim=True)
        direction = left + torch.where(before > 0, size / before, 0.0) * direction
    return found


def _check(iterations: int, draws: int) -> None:
    if iterations < 1 or draws < 1:
        raise InvalidValue(f"expected iterations and draws >= 1, got {iterations!r} and {draws!r}")


@dataclass(frozen=True)
class GradientNorm:
    """The norm of what each person would share alone: ||g_b||.

    Example:
        >>> import seepage as sp
        >>> photos, task = sp.data.bundled("photos", size=2), sp.zoo.mlp(hidden=(16,))
        >>> GradientNorm()(sp.Client(sp.Gradient()), task, photos, rng=sp.rng(0)).shape
        torch.Size([2])

    References:
        Zhang et al., 2023 (zhang2023understanding), on what makes a gradient easy to invert
    """

    name: ClassVar[str] = "gradient_norm"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """One gradient per person."""
        require_key(rng)
        alone = [(batch.inputs[i : i + 1], batch.labels[i : i + 1]) for i in range(len(batch))]
        return torch.stack([client.expected(task, x, y).norm().detach() for x, y in alone]).double()


@dataclass(frozen=True, kw_only=True)
class JacobianNorm:
    """How strongly the update follows each person's input: ||J_b||_F, J_b = d update / d x_b.

    Args:
        probes: Random directions it is estimated from, one product with the Jacobian each.

    References:
        Liu et al., 2024, Eq. 29 (liu2024systematic), where it bounds the error from below
    """

    name: ClassVar[str] = "jacobian_norm"
    higher_leaks_more: ClassVar[bool] = True

    probes: int = 16

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """A few products per person."""
        require_key(rng)
        found = [
            squared_norm(jacobian, probes=self.probes, rng=rng.fork(person))[0] ** 0.5
            for person, jacobian in enumerate(person_jacobians(client, task, batch))
        ]
        return torch.tensor(found, dtype=torch.float64)


@runtime_checkable
class _RiskScore(Protocol):
    """Who is at risk, without attacking anybody: one number per person, a frozen value."""

    @property
    def name(self) -> str:
        """The key in tables."""

    @property
    def higher_leaks_more(self) -> bool:
        """Direction."""

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """Score each person, `(B,)`.

        Args:
            client: Who shares, and behind which defense, whose expectation is differentiated.
            task: The broadcast network, in the mode the client runs it.
            batch: Everybody who takes part.
            rng: For random directions.
        """


_ALL = (GradientNorm, JacobianNorm, InversionInfluence, InfluenceFloor)
RISKS: Catalogue[Callable[..., _RiskScore]] = Catalogue(
    "risk score", "seepage.risks", {kind.name: kind for kind in _ALL}
)
