"""Separate the gradient of a batch into its examples, given the directions of all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.exact_batch._span_factors import Candidates, Factors

# Wrong directions let about half of a gradient through silent neurons.
_LARGEST_LEAK = 0.01
# A neuron with |z| below this, relative to all z of an example, may be active or silent.
_BRINK = 0.05
_SETTLING = 10


@dataclass(frozen=True, eq=False)
class ReLULayer:
    """The parameters of z = W x + b, in float64: `(m, n)` and `(m,)`."""

    weight: Tensor
    bias: Tensor

    def find_silent(self, inputs: Tensor, noise: float = 0.0) -> Tensor:
        """Which neurons `(B, m)` are clearly silent for these inputs `(B, n)`.

        Neurons near zero do not count: noise in the inputs or a local step may activate them.
        """
        z = inputs @ self.weight.T + self.bias
        margin = min(max(_BRINK, 10 * noise), 0.5)
        return z < -margin * z.square().mean(1, keepdim=True).sqrt()


@dataclass(frozen=True, eq=False)
class Separation:
    """The batch's gradient, separated into the examples that caused it.

    Args:
        inputs: `(B, n)`, as the layer reads them.
        gradients: dL/dz of each example, `(B, m)`.
        silent: Which neurons the inputs clearly leave silent, `(B, m)`.
    """

    inputs: Tensor
    gradients: Tensor
    silent: Tensor

    @property
    def leaks(self) -> Tensor:
        """The share of each example's gradient that comes through silent neurons, `(B,)`.

        It is zero for a correct example: a silent neuron passes nothing.
        """
        through = torch.where(self.silent, self.gradients, 0)
        return torch.nan_to_num(through.norm(dim=1) / self.gradients.norm(dim=1), nan=1.0)

    @property
    def leak(self) -> float:
        """The mean of `leaks`."""
        return float(self.leaks.mean())

    def is_consistent(self, noise: float) -> bool:
        """Whether the forward pass confirms all examples, up to the noise."""
        return float(self.leaks.max()) < max(_LARGEST_LEAK, min(2 * noise, 0.3))


def separate_examples(factors: Factors, layer: ReLULayer, found: Candidates) -> Separation:
    """Scale B directions by the bias gradient and read off the inputs.

    P 1 = total,   D = span P,   X = P^-1 mixtures
    """
    directions = found.directions.T
    scaled = directions * torch.linalg.solve_ex(directions, factors.total)[0]
    inputs = torch.nan_to_num(torch.linalg.solve_ex(scaled, factors.mixtures)[0])
    return Separation(inputs, (factors.span @ scaled).T, layer.find_silent(inputs, factors.noise))


def refine_separation(factors: Factors, layer: ReLULayer, separation: Separation) -> Separation:
    """Solve again with the silent neurons known, until they no longer change.

    Given an example's silent neurons, its direction is the one that lets least through them, a
    linear problem. This uses all silent neurons, not only the few that first pointed there. If
    they leave an example more than one direction, the separation stays as it is.
    """
    for _ in range(_SETTLING):
        energy, directions = torch.linalg.eigh(_leak_forms(factors, separation))
        if not _one_direction_each(energy, factors.noise):
            break
        again = separate_examples(factors, layer, Candidates(directions[..., 0], energy[:, 0]))
        if again.leak > separation.leak:
            break
        changed = not torch.equal(again.silent, separation.silent)
        separation = again
        if not changed:
            break
    return separation


def is_determined(factors: Factors, separation: Separation) -> bool:
    """Whether the silent neurons leave only one direction for every example."""
    energy = torch.linalg.eigvalsh(_leak_forms(factors, separation))
    return _one_direction_each(energy, factors.noise)


def bound_error(separation: Separation, *, weight_error: float, bias_error: float) -> float:
    """Bound the error of every entry of the inputs, given the errors of the layer's gradients.

    With E the error of (dL/dW, s dL/db) = D X, where s is the last entry of every input, and e that
    of dL/db = D 1, to first order

        dX = D^+ E - A X,   D A = 0 at silent neurons, up to E X^+,   D A 1 = e, up to E X^+ 1

    So a column A_p, but for its own entry, is at most ||E X^+_p|| / sigma_min(D) of the silent
    neurons of p and the columns of the others. The last equation gives the entries A_pp.

    Args:
        separation: The inputs and gradients, whose silent neurons are taken to be right.
        weight_error: That of dL/dW, relative to its norm.
        bias_error: ||e||, relative to ||D 1||.
    """
    inputs, columns = separation.inputs.double(), separation.gradients.double().T
    size = len(inputs)
    moved = bias_error * float(columns.sum(1).norm())
    scale = float(inputs.norm(dim=1).mean()) or 1.0
    off = math.hypot(weight_error * float((columns @ inputs).norm()), scale * moved)
    solved = torch.linalg.pinv(columns).norm(dim=1)
    # An input of zeros, or a combination of others, is told apart by the bias.
    spread = torch.linalg.pinv(nn.functional.pad(inputs, (0, 1), value=scale)).norm(dim=0)
    largest = inputs.abs().amax(1)
    turned = torch.zeros_like(spread)
    for one in range(size if size > 1 else 0):
        others = torch.arange(size, device=inputs.device) != one
        through = columns[separation.silent[one]][:, others]
        if len(through) < size - 1:
            return math.inf
        least = torch.linalg.svdvals(through)[-1]
        turned[one] = off * spread[one] / least
    own = moved * solved.max() + turned.sum()
    mixed = turned @ largest + own * largest
    return float((off * solved + mixed).max())


def _leak_forms(factors: Factors, separation: Separation) -> Tensor:
    """Quadratic forms `(B, B, B)`: how much of a direction passes each example's silent neurons."""
    silent = separation.silent.to(factors.span)
    return torch.einsum("pm,mi,mj->pij", silent, factors.span, factors.span)


def _one_direction_each(energy: Tensor, noise: float) -> bool:
    """Whether the second smallest eigenvalue of every example, of `(B, B)`, is not zero."""
    return bool((energy[:, 1:2] > max(1e-10, (3 * noise) ** 2)).all())
