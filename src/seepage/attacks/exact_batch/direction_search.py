"""Run direction searches in rounds until the forward pass confirms the separated batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from seepage.attacks.exact_batch.span_factors import Candidates, Factors, empty_candidates
from seepage.core import Rng
from seepage.core.errors import NotApplicable
from seepage.core.progress import report

# Wrong directions let about half of a gradient through silent neurons.
_LARGEST_LEAK = 0.01
# How near to zero, relative to all z of a person, a neuron is on the brink of being active.
_BRINK = 0.05
_SETTLING = 10


@dataclass(frozen=True, eq=False)
class ReLULayer:
    """The parameters of z = W x + b, in float64: `(m, n)` and `(m,)`."""

    weight: Tensor
    bias: Tensor

    def silent(self, inputs: Tensor, noise: float = 0.0) -> Tensor:
        """Which neurons `(B, m)` these inputs `(B, n)` leave plainly silent.

        Those on the brink are not among them: noise in the inputs, or a local step, tips them.
        """
        z = inputs @ self.weight.T + self.bias
        margin = min(max(_BRINK, 10 * noise), 0.5)
        return z < -margin * z.square().mean(1, keepdim=True).sqrt()


@dataclass(frozen=True, eq=False)
class Separation:
    """The batch's gradient, separated into the examples that caused it.

    Args:
        inputs: `(B, n)`, as the layer reads them.
        gradients: dL/dz of each person, `(B, m)`.
        silent: Which neurons the inputs leave plainly silent, `(B, m)`.
    """

    inputs: Tensor
    gradients: Tensor
    silent: Tensor

    @property
    def leaks(self) -> Tensor:
        """The share of each person's gradient that comes through silent neurons, `(B,)`.

        Zero if the person is right, for a silent neuron passes nothing.
        """
        through = torch.where(self.silent, self.gradients, 0)
        return torch.nan_to_num(through.norm(dim=1) / self.gradients.norm(dim=1), nan=1.0)

    @property
    def leak(self) -> float:
        """The mean of `leaks`."""
        return float(self.leaks.mean())

    def consistent(self, noise: float) -> bool:
        """Whether the forward pass agrees with everybody, as far as noise lets it."""
        return float(self.leaks.max()) < max(_LARGEST_LEAK, min(2 * noise, 0.3))


def separate(factors: Factors, layer: ReLULayer, found: Candidates) -> Separation:
    """Scale B directions by the bias gradient and read off the inputs.

    P 1 = total,   D = span P,   X = P^-1 mixtures
    """
    directions = found.directions.T
    scale = torch.linalg.solve_ex(directions, factors.total)[0]
    scaled = directions * scale
    inputs = torch.nan_to_num(torch.linalg.solve_ex(scaled, factors.mixtures)[0])
    return Separation(inputs, (factors.span @ scaled).T, layer.silent(inputs, factors.noise))


def refine_separation(factors: Factors, layer: ReLULayer, separation: Separation) -> Separation:
    """Solve again with the silent neurons known, until they no longer change.

    Given which neurons are silent for a person, the direction is linear: the one that lets least
    through them. All of them are used here, and not only the few that first pointed there. Where
    they leave more than one direction to somebody, the separation stays as it is.
    """
    for _ in range(_SETTLING):
        energy, directions = torch.linalg.eigh(_through_silent(factors, separation))
        if not _one_direction_each(energy, factors.noise):
            break
        again = separate(factors, layer, Candidates(directions[..., 0], energy[:, 0]))
        if again.leak > separation.leak:
            break
        changed = not torch.equal(again.silent, separation.silent)
        separation = again
        if not changed:
            break
    return separation


def determined(factors: Factors, separation: Separation) -> bool:
    """Whether the silent neurons leave only one direction for every example."""
    energy = torch.linalg.eigvalsh(_through_silent(factors, separation))
    return _one_direction_each(energy, factors.noise)


def _through_silent(factors: Factors, separation: Separation) -> Tensor:
    """Each person's quadratic form `(B, B, B)`: how much a direction lets through the silent."""
    silent = separation.silent.to(factors.span)
    return torch.einsum("pm,mi,mj->pij", silent, factors.span, factors.span)


def _one_direction_each(energy: Tensor, noise: float) -> bool:
    """Whether the second smallest of everybody's eigenvalues `(B, B)` is not zero."""
    return bool((energy[:, 1:2] > max(1e-10, (3 * noise) ** 2)).all())


class DirectionSearch(Protocol):
    """Looks for the directions in the span that belong to a person, one round at a time.

    Args:
        quick_up_to: The batch size up to which it is worth being tried before others.
        patience: Rounds that change nothing, in a row, after which it gives up.
    """

    quick_up_to: ClassVar[float]
    patience: ClassVar[float]

    @property
    def rounds(self) -> int:
        """How many rounds at most."""

    def probability(self, factors: Factors) -> float:
        """How likely it is to find everybody here, before it is tried."""

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """More candidates, given the best so far."""


def separate_batch(
    searches: Sequence[DirectionSearch], factors: Factors, layer: ReLULayer, *, rng: Rng
) -> tuple[Separation, tuple[float, ...]]:
    """Run searches in order until one separates the batch consistently.

    Returns:
        The most consistent separation, and after each round the share of the gradient that comes
        through silent neurons, averaged over people, which is zero where everybody is right.
    """
    best: Separation | None = None
    trail: list[float] = []
    for search in searches:
        found, idle = empty_candidates(factors.span), 0
        for number in range(search.rounds):
            before = found.directions
            key = rng.fork(type(search).__name__, number)
            found = found.join(search(factors, found, rng=key)).select_independent()
            report(number + 1, search.rounds, 1.0 if best is None else best.leak)
            idle = idle + 1 if torch.equal(found.directions, before) else 0
            if idle > search.patience:
                break
            if idle or len(found) < factors.people:
                continue
            separation = separate(factors, layer, found)
            if best is None or separation.leak < best.leak:
                best = separation
            trail.append(best.leak)
            settled = refine_separation(factors, layer, separation)
            if settled.consistent(factors.noise):
                return settled, (*trail, settled.leak)
    if best is None:
        raise NotApplicable(
            f"{factors.people} independent directions were not found in the span of the gradient; "
            "exact inversion needs a wider layer or a smaller batch"
        )
    return best, tuple(trail)
