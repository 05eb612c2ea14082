"""How much a noisy update says about each direction of the inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.nn.functional import one_hot

from seepage.bounds.channel import Channel
from seepage.core import Batch, Rng, Task

# Numbers held at once while directions pass by.
HELD = 2**24

Linear = Callable[[Tensor], Tensor]


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

    @cached_property
    def equations(self) -> int:
        """Number P of entries of the signal."""
        with torch.no_grad():
            return self.signal(self.points[0]).numel()

    def pushed(self, point: Tensor, directions: Tensor) -> Tensor:
        """J d at a point for every row d of `(k, n)`."""
        _load_forward_mode()

        def push(direction: Tensor) -> Tensor:
            return cast(Tensor, jvp(self.signal, (point,), (direction,))[1])

        return self._over(push)(directions).detach()

    def products(self, directions: Tensor) -> Tensor:
        """I d for every row d of `(k, n)`."""
        return torch.cat([self._products(some) for some in self._some(directions)])

    def dense(self) -> Tensor:
        """The whole matrix `(n, n)`, by way of all of J."""
        total = torch.diag(self.prior + torch.zeros_like(self.points[0]))
        for point in self.points:
            columns = torch.cat([self.pushed(point, some) for some in self._axes()])
            total += columns @ columns.T / (len(self.points) * self.std**2)
        return total

    def squares(self, directions: Tensor) -> Tensor:
        """d^T I d for every row d of `(k, n)`, without the prior."""
        found = [
            torch.cat([self.pushed(point, some).square().sum(1) for some in self._some(directions)])
            for point in self.points
        ]
        return torch.stack(found).mean(0) / self.std**2

    def block_traces(self, people: int) -> Tensor:
        """The trace of every person's diagonal block `(B,)`, without the prior."""
        found = torch.cat([self.squares(some) for some in self._axes()])
        return found.reshape(people, -1).sum(1)

    @cached_property
    def _pulls(self) -> list[Linear]:
        return [_pull(self.signal, point) for point in self.points]

    def _products(self, directions: Tensor) -> Tensor:
        total = torch.zeros_like(directions)
        for point, pull in zip(self.points, self._pulls, strict=True):
            total += self._over(pull)(self.pushed(point, directions)).detach()
        return total / (len(self.points) * self.std**2) + self.prior * directions

    def _some(self, directions: Tensor) -> tuple[Tensor, ...]:
        """As many at once as fit."""
        return torch.split(directions, max(1, HELD // max(self.equations, self.unknowns)))

    def _axes(self) -> Iterator[Tensor]:
        """All unit vectors, as many at once as fit: an identity of all inputs may not."""
        for some in self._some(torch.arange(self.unknowns, device=self.points.device)):
            yield one_hot(some, self.unknowns).to(self.points)

    def _over(self, function: Linear) -> Linear:
        return vmap(function) if self.vectorised else _in_turn(function)


@cache
def _load_forward_mode() -> None:
    """Use it once: torch compiles parts of it then, in a way that it warns about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))


def _pull(signal: Linear, point: Tensor) -> Linear:
    pull = cast(Callable[[Tensor], tuple[Tensor]], vjp(signal, point)[1])
    return lambda row: pull(row)[0]


def _in_turn(function: Linear) -> Linear:
    return lambda rows: torch.stack([function(row) for row in rows])


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
