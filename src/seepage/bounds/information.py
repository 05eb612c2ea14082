"""How much a noisy update says about each direction of the inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from seepage.attacks.jacobian import Jacobian, Linear
from seepage.bounds.channel import Channel
from seepage.clients.client import Client
from seepage.core import Batch, Rng, Task
from seepage.core.progress import report


@dataclass(frozen=True, eq=False)
class Information:
    """The Fisher information about n unknowns, never held as a whole unless asked for.

        I = mean_k J(x_k)^T J(x_k) / std^2 + diag(prior)

    with J(x) `(P, n)` the derivative of the signal.

    Args:
        signal: `(n,) -> (P,)`, made of differentiable torch operations.
        points: Where J is taken, `(K, n)`; the truth alone unless a prior is averaged over.
        std: Scale of the noise.
        prior: Information before any update is seen, `(n,)`, or zero.
        vectorised: Whether `torch.func.vmap` may run several directions at once.

    Example:
        >>> doubled = Information(lambda x: 2 * x, torch.zeros(1, 3), std=0.5)
        >>> doubled.products(torch.eye(3)[:1])
        tensor([[16.,  0.,  0.]])
    """

    signal: Linear
    points: Tensor
    std: float
    prior: Tensor | float = 0.0
    vectorised: bool = True

    @property
    def unknowns(self) -> int:
        """Number n of inputs."""
        return self.points.shape[1]

    @property
    def equations(self) -> int:
        """Number P of entries of the signal."""
        return self._jacobians[0].equations

    def products(self, directions: Tensor) -> Tensor:
        """I d for every row d of `(k, n)`."""
        seen = torch.stack([one.squared(directions) for one in self._jacobians]).mean(0)
        return seen / self.std**2 + self.prior * directions

    def dense(self) -> Tensor:
        """The whole matrix `(n, n)`."""
        total = torch.diag(self.prior + torch.zeros_like(self.points[0]))
        for number, one in enumerate(self._jacobians):
            counted = partial(_told, number * self.unknowns, self.points.numel())
            total += one.gram(counted) / (len(self.points) * self.std**2)
        return total

    def squares(self, directions: Tensor) -> Tensor:
        """d^T I d for every row d of `(k, n)`, without the prior."""
        found = [one.squares(directions) for one in self._jacobians]
        return torch.stack(found).mean(0) / self.std**2

    def block_traces(self, people: int) -> Tensor:
        """The trace of every person's diagonal block `(B,)`, without the prior."""
        found: list[Tensor] = []
        for some in self._jacobians[0].axes():
            found.append(self.squares(some))
            _told(0, self.unknowns, sum(map(len, found)))
        return torch.cat(found).reshape(people, -1).sum(1)

    @cached_property
    def _jacobians(self) -> list[Jacobian]:
        return [Jacobian(self.signal, point, vectorised=self.vectorised) for point in self.points]


def _told(before: int, total: int, done: int) -> None:
    report(before + done, total, math.nan)


def information(
    seen: Channel, task: Task, batch: Batch, points: Tensor | None = None
) -> Information:
    """The information of a channel about a batch, in natural units and double precision.

    Args:
        seen: Signal and noise.
        task: The broadcast network.
        batch: The private inputs and the labels, which are taken for known.
        points: Other batches `(K, B, ...)` to average over in its place.
    """
    exact, shape = task.to(dtype=torch.float64), batch.inputs.shape
    soft = batch.labels.double() if batch.labels.is_floating_point() else batch.labels

    def signal(flat: Tensor) -> Tensor:
        return seen.signal(exact, flat.reshape(shape), soft)

    at = (batch.inputs[None] if points is None else points).double().flatten(1)
    return Information(signal, at, seen.std, vectorised=not exact.mixes_examples)


def signs(shape: tuple[int, ...], like: Tensor, rng: Rng) -> Tensor:
    """Random signs, the probes of trace estimators."""
    return torch.where(rng.uniform(shape, like=like) < 0.5, -1.0, 1.0).to(like)


def person_jacobians(client: Client, task: Task, batch: Batch) -> list[Jacobian]:
    """For each person the derivative `(P, d)` of the expected update in that person's input.

    In double precision; everybody else's input stays as it is.
    """
    exact = task.to(dtype=torch.float64)
    inputs = batch.inputs.double()

    def of(person: int) -> Jacobian:
        def update(flat: Tensor) -> Tensor:
            rows = [*inputs[:person], flat.reshape(inputs.shape[1:]), *inputs[person + 1 :]]
            return client.expected(exact, torch.stack(rows), batch.labels).flat()

        return Jacobian(update, inputs[person].flatten(), vectorised=not exact.mixes_examples)

    return [of(person) for person in range(len(batch))]


def squared_norm(jacobian: Jacobian, *, probes: int, rng: Rng) -> tuple[float, float]:
    """||J||_F^2 = E ||J z||^2 over random signs z, and the standard error of the estimate.

    References:
        Hutchinson, 1990 (hutchinson1990stochastic)
    """
    drawn = signs((probes, jacobian.unknowns), jacobian.at, rng)
    found = jacobian.squares(drawn)
    return float(found.mean()), float(found.std()) / math.sqrt(probes)


def largest_eigenvalue(jacobian: Jacobian, *, iterations: int, rng: Rng) -> float:
    """lambda_max(J^T J) by power iteration, from below."""
    direction = rng.normal((jacobian.unknowns,), like=jacobian.at)
    value = 0.0
    for _ in range(iterations):
        (image,) = jacobian.squared((direction / direction.norm())[None])
        value, direction = float(image.norm()), image
        if value == 0:
            break
    return value
