"""Risk scores: how exposed each example is, estimated without an attack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks._jacobian import Jacobian
from seepage.bounds._information import draw_signs
from seepage.core import Batch, Rng, Task
from seepage.core._client import Client
from seepage.core._plugins import Catalogue
from seepage.core._rng import require_key
from seepage.core.errors import require_at_least, require_positive


class _RiskScore:
    """Abstract: one number per example that ranks who is at risk, without an attack."""

    name: ClassVar[str]
    higher_leaks_more: ClassVar[bool]

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """Score each example, `(B,)`, in double precision; arguments as for `Bound`."""
        require_key(rng)
        exact, inputs = task.to(dtype=torch.float64), batch.inputs.double()

        def differentiate(example: int) -> Jacobian:
            def update(flat: Tensor) -> Tensor:
                rows = [*inputs[:example], flat.reshape(inputs.shape[1:]), *inputs[example + 1 :]]
                return client.expected(exact, torch.stack(rows), batch.labels).flat()

            return Jacobian(update, inputs[example].flatten(), vectorised=not exact.mixes_examples)

        found = [self.score(differentiate(i), rng.fork(i)) for i in range(len(batch))]
        return torch.tensor(found, dtype=torch.float64)

    def score(self, jacobian: Jacobian, rng: Rng) -> float:
        """Score one example by J `(P, d)`: the expected update, differentiated in its input."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class InversionInfluence(_RiskScore):
    """How far the best guess moves when the update changes by standard normal noise delta.

        ||(J^T J + eps I)^-1 J^T delta|| / sqrt(d),   eps = damping * lambda_max(J^T J)

    Args:
        damping: eps as a share of the largest eigenvalue.
        iterations: Steps of conjugate gradients and of the power iteration, two products each.
        draws: Number of changes delta to average over.

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
        require_positive(damping=self.damping)
        require_at_least(1, iterations=self.iterations, draws=self.draws)

    def score(self, jacobian: Jacobian, rng: Rng) -> float:
        """Solve a damped system for each change."""
        top = _largest_eigenvalue(jacobian, iterations=self.iterations, rng=rng.fork("power"))
        if top == 0:
            return math.inf
        pulled = _pull_changes(jacobian, self.draws, rng)
        moved = _solve(jacobian, pulled, damping=self.damping * top, iterations=self.iterations)
        return float(moved.square().mean().sqrt())


@dataclass(frozen=True, kw_only=True)
class InfluenceFloor(_RiskScore):
    """A cheap lower bound of inversion influence: one product per change and a power iteration.

        ||J^T delta|| / (lambda_max(J^T J) sqrt(d))

    Args:
        iterations: Steps of the power iteration, two products each.
        draws: Number of standard normal changes delta to average over.

    References:
        Zhang et al., 2023 (zhang2023understanding), the lower bound of the influence
    """

    name: ClassVar[str] = "influence_floor"
    higher_leaks_more: ClassVar[bool] = False

    iterations: int = 10
    draws: int = 1

    def __post_init__(self) -> None:
        require_at_least(1, iterations=self.iterations, draws=self.draws)

    def score(self, jacobian: Jacobian, rng: Rng) -> float:
        """Compute a few products."""
        top = _largest_eigenvalue(jacobian, iterations=self.iterations, rng=rng.fork("power"))
        if top == 0:
            return math.inf
        moved = _pull_changes(jacobian, self.draws, rng) / top
        return float(moved.square().mean().sqrt())


def _largest_eigenvalue(jacobian: Jacobian, *, iterations: int, rng: Rng) -> float:
    """Compute lambda_max(J^T J) by power iteration, from below."""
    direction = rng.normal((jacobian.unknowns,), like=jacobian.at)
    value = 0.0
    for _ in range(iterations):
        (image,) = jacobian.squared((direction / direction.norm())[None])
        value, direction = float(image.norm()), image
        if value == 0:
            break
    return value


def _pull_changes(jacobian: Jacobian, draws: int, rng: Rng) -> Tensor:
    """Compute J^T delta for random changes delta, `(draws, d)`."""
    changes = rng.fork("delta").normal((draws, jacobian.equations), like=jacobian.at)
    return jacobian.adjoint(changes)


def _solve(jacobian: Jacobian, wanted: Tensor, *, damping: float, iterations: int) -> Tensor:
    """Apply (J^T J + damping I)^-1 to every row, by conjugate gradients.

    References:
        Hestenes and Stiefel, 1952 (hestenes1952methods)
    """
    found = torch.zeros_like(wanted)
    left = direction = wanted
    size = left.square().sum(1, keepdim=True)
    for _ in range(iterations):
        image = jacobian.squared(direction) + damping * direction
        curvature = (direction * image).sum(1, keepdim=True)
        # A solved row has no residual left and takes no further step.
        step = torch.where(curvature > 0, size / curvature, 0.0)
        found, left = found + step * direction, left - step * image
        before, size = size, left.square().sum(1, keepdim=True)
        direction = left + torch.where(before > 0, size / before, 0.0) * direction
    return found


@dataclass(frozen=True)
class GradientNorm(_RiskScore):
    """The norm of the update that each example would share alone: ||g_b||.

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
        """Compute one update for each example."""
        require_key(rng)
        alone = [(batch.inputs[i : i + 1], batch.labels[i : i + 1]) for i in range(len(batch))]
        return torch.stack([client.expected(task, x, y).norm().detach() for x, y in alone]).double()


@dataclass(frozen=True, kw_only=True)
class JacobianNorm(_RiskScore):
    """How strongly the update depends on each example's input: ||J_b||_F, J_b = d update / d x_b.

    Args:
        probes: Number of random sign vectors z in ||J||_F^2 = E ||J z||^2, one product each.

    References:
        Liu et al., 2024, Eq. 29 (liu2024systematic), where it bounds the error from below;
        Hutchinson, 1990 (hutchinson1990stochastic)
    """

    name: ClassVar[str] = "jacobian_norm"
    higher_leaks_more: ClassVar[bool] = True

    probes: int = 16

    def score(self, jacobian: Jacobian, rng: Rng) -> float:
        """Compute a few products."""
        signs = draw_signs((self.probes, jacobian.unknowns), jacobian.at, rng)
        norm: float = float(jacobian.squares(signs).mean()) ** 0.5
        return norm


_ALL = (GradientNorm, JacobianNorm, InversionInfluence, InfluenceFloor)
RISKS: Catalogue[Callable[..., _RiskScore]] = Catalogue(
    "risk score", "seepage.risks", {kind.name: kind for kind in _ALL}
)
