"""Find directions by sampling neurons that are all silent for one example."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.exact_batch.span_factors import (
    Candidates,
    Factors,
    require_at_least_one,
    success_probability,
)
from seepage.core import Rng


@dataclass(frozen=True, kw_only=True)
class KernelSampling:
    """Draws B - 1 neurons at a time and takes the direction that is zero at all of them.

    ReLU zeroes about half of each column of dL/dZ = span P. If the B - 1 neurons drawn are silent
    for one person, their rows of the span have that person's direction as their kernel, and
    span p is then zero at many neurons more, which chance does not make. One draw in 2^(B-1) is
    such a one for a given person.

    Args:
        samples: Draws in each round.
        rounds: At most.

    Deviations: candidates are ranked by how many neurons are silent and chosen greedily among
    the linearly independent; the paper starts from the same choice and then exchanges single
    directions to raise the agreement with the forward pass, which here is a check only.

    References:
        Dimitrov et al., 2024 (dimitrov2024spear)
    """

    samples: int = 8_192
    rounds: int = 32

    quick_up_to: ClassVar[float] = 8
    patience: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        """Check the numbers."""
        require_at_least_one(samples=self.samples, rounds=self.rounds)

    def probability(self, factors: Factors) -> float:
        """That all rounds together find everybody."""
        return success_probability(
            neurons=int(factors.live.sum()),
            people=factors.people,
            samples=self.samples * self.rounds,
        )

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """One round of draws; what is found already does not guide them."""
        span = factors.span[factors.live]
        neurons = rng.uniform((self.samples, len(span)), like=span)
        rows = span[neurons.topk(factors.people - 1, dim=1).indices]
        directions = kernels(rows)
        silent = (directions @ span.T).abs()
        zeros = (silent <= factors.tolerance * silent.amax(1, keepdim=True)).sum(1)
        return Candidates(directions, 1 - zeros / len(span))


def kernels(rows: Tensor) -> Tensor:
    """The unit vectors `(N, B)` that rows `(N, B - 1, B)` map to zero.

    Example:
        >>> kernels(torch.tensor([[[3.0, 4.0]]])).allclose(torch.tensor([-0.8, 0.6]))
        True
    """
    # With the last entry set to one, the others solve a square system; LU is fast in batches.
    others = torch.linalg.solve_ex(rows[..., :-1], -rows[..., -1:])[0][..., 0]
    vectors = torch.cat([others, rows.new_ones(len(rows), 1)], dim=1)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    return torch.nan_to_num(unit, nan=0.0, posinf=0.0, neginf=0.0)
