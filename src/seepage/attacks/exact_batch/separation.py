"""From directions to people: scale, inputs, and the check by a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.exact_batch.candidates import Candidates
from seepage.attacks.exact_batch.factors import Factors

# Wrong directions let about half of a gradient through silent neurons.
_LARGEST_LEAK = 0.01
# How near to zero, relative to all z of a person, a neuron is on the brink of being active.
_BRINK = 0.05
_SETTLING = 10


@dataclass(frozen=True, eq=False)
class Layer:
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
    """Everybody's share of the gradient.

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


def separate(factors: Factors, layer: Layer, found: Candidates) -> Separation:
    """Scale B directions by the bias gradient and read off the inputs.

    P 1 = total,   D = span P,   X = P^-1 mixtures
    """
    directions = found.directions.T
    scale = torch.linalg.solve_ex(directions, factors.total)[0]
    scaled = directions * scale
    inputs = torch.nan_to_num(torch.linalg.solve_ex(scaled, factors.mixtures)[0])
    return Separation(inputs, (factors.span @ scaled).T, layer.silent(inputs, factors.noise))


def settle(factors: Factors, layer: Layer, separation: Separation) -> Separation:
    """Solve anew with the silent neurons known, until they no longer change.

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
    """Whether everybody's silent neurons leave no second direction: each kernel is a line."""
    energy = torch.linalg.eigvalsh(_through_silent(factors, separation))
    return _one_direction_each(energy, factors.noise)


def _through_silent(factors: Factors, separation: Separation) -> Tensor:
    """Each person's quadratic form `(B, B, B)`: how much a direction lets through the silent."""
    silent = separation.silent.to(factors.span)
    return torch.einsum("pm,mi,mj->pij", silent, factors.span, factors.span)


def _one_direction_each(energy: Tensor, noise: float) -> bool:
    """Whether the second smallest of everybody's eigenvalues `(B, B)` is not zero."""
    return bool((energy[:, 1:2] > max(1e-10, (3 * noise) ** 2)).all())
