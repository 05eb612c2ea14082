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
    find_silent,
    success_probability,
)
from seepage.core import Rng
from seepage.core.errors import require_at_least


@dataclass(frozen=True, kw_only=True)
class KernelSampling:
    """Draws B - 1 neurons at a time and takes the direction that is zero at all of them.

    ReLU zeroes about half of each column of dL/dZ = span P. If the B - 1 drawn neurons are silent
    for one example, that example's direction p is the kernel of their rows of the span. Then span p
    is also zero at many other neurons, which does not happen by chance. For a given example, one
    draw in 2^(B-1) succeeds.

    Args:
        samples: Draws in each round.
        rounds: Largest number of rounds.

    Deviations: candidates are ranked by the number of silent neurons, and the best linearly
    independent ones are chosen greedily. The paper starts from the same choice and then exchanges
    single directions to improve the agreement with the forward pass. Here that agreement is only
    checked.

    References:
        Dimitrov et al., 2024 (dimitrov2024spear)
    """

    samples: int = 8_192
    rounds: int = 32

    quick_up_to: ClassVar[float] = 8
    patience: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        require_at_least(1, samples=self.samples, rounds=self.rounds)

    def probability(self, factors: Factors) -> float:
        """Probability that all rounds together find all examples."""
        return success_probability(
            neurons=int(factors.live.sum()),
            batch_size=factors.batch_size,
            samples=self.samples * self.rounds,
        )

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """Run one round of draws, independent of what was found before."""
        span = factors.span[factors.live]
        neurons = rng.uniform((self.samples, len(span)), like=span)
        directions = find_kernels(span[neurons.topk(factors.batch_size - 1, dim=1).indices])
        zeros = find_silent(span, directions, factors.tolerance).sum(1)
        return Candidates(directions, 1 - zeros / len(span))


def find_kernels(rows: Tensor) -> Tensor:
    """The unit vectors `(N, B)` that rows `(N, B - 1, B)` map to zero.

    Example:
        >>> find_kernels(torch.tensor([[[3.0, 4.0]]])).allclose(torch.tensor([-0.8, 0.6]))
        True
    """
    # With the last entry set to one, the others solve a square system; LU is fast in batches.
    others = torch.linalg.solve_ex(rows[..., :-1], -rows[..., -1:])[0][..., 0]
    vectors = torch.cat([others, rows.new_ones(len(rows), 1)], dim=1)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    return torch.nan_to_num(unit, nan=0.0, posinf=0.0, neginf=0.0)
