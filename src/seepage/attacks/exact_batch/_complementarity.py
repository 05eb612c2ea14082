"""Find directions by least squares: each neuron blocks its upstream gradient or passes it whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.exact_batch._span_factors import Candidates, Factors, determined_probability
from seepage.core import Rng
from seepage.core.errors import require_at_least

# A start that ends below this has found an example; the others end near 1e-2.
_SETTLED = 1e-4


@dataclass(frozen=True, kw_only=True)
class Complementarity:
    """Solves for one example at a time, in B + r unknowns, without labels.

    The layer above sends v = above e down to the neurons, where `above` has rank r. An active
    neuron passes v on and a silent one passes nothing. So d = span p, the example's column of
    dL/dZ, satisfies

        d_j (d_j - v_j) = 0   for every neuron j.

    Once m is a few times B + r, only the B examples of the batch solve these m quadratic equations
    in (p, e). They are solved by Levenberg-Marquardt on the sphere ||p|| = 1 from many random
    starts at once. Most starts end at an example.

    Args:
        starts: Random starts in each round.
        steps: Steps of Levenberg-Marquardt.
        rounds: Largest number of rounds.

    References:
        Levenberg, 1944 (levenberg1944method); Dimitrov et al., 2024 (dimitrov2024spear) for the
        setting. The equations and their use are ours.
    """

    starts: int = 64
    steps: int = 40
    rounds: int = 24

    # For larger batches few starts settle, and each costs the square of the batch size.
    quick_up_to: ClassVar[float] = 32
    patience: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        require_at_least(1, starts=self.starts, steps=self.steps, rounds=self.rounds)

    def probability(self, factors: Factors) -> float:
        """Probability that all examples are determined; 0 if the layer above is unknown."""
        if factors.above is None:
            return 0.0
        return determined_probability(
            neurons=int(factors.live.sum()), batch_size=factors.batch_size
        )

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """Run one round of starts, each moved away from the directions already found."""
        assert factors.above is not None, "Complementarity needs the layer above"
        starts = rng.fork("starts").normal((self.starts, factors.batch_size), like=factors.span)
        away = rng.fork("away").uniform((self.starts, 1), like=factors.span)
        known = torch.linalg.qr(found.directions[found.scores < _SETTLED].T).Q
        starts = starts - away * (starts @ known) @ known.T
        live, norms = factors.live, factors.live_norms
        span, above = factors.span[live] / norms, factors.above[live] / norms
        return _levenberg_marquardt(span, torch.linalg.qr(above).Q, starts, self.steps)


def _levenberg_marquardt(span: Tensor, above: Tensor, starts: Tensor, steps: int) -> Candidates:
    size = span.shape[1]
    p = starts / starts.norm(dim=1, keepdim=True)
    e = _best_above(span, above, p)
    objective = _objective(span, above, p, e)
    damping = torch.full_like(objective, 0.1)
    for _ in range(steps):
        move = _move(span, above, p, e, damping)
        length = (p + move[:, :size]).norm(dim=1, keepdim=True)
        there = (p + move[:, :size]) / length, (e + move[:, size:]) / length
        value = _objective(span, above, *there)
        # A comparison with NaN is false, so a step to NaN is not taken.
        better = value < objective
        p = torch.where(better[:, None], there[0], p)
        e = torch.where(better[:, None], there[1], e)
        objective = torch.where(better, value, objective)
        damping = torch.where(better, damping / 4, damping * 4).clamp(1e-9, 1e6)
    return Candidates(p, torch.nan_to_num(objective, nan=torch.inf))


def _objective(span: Tensor, above: Tensor, p: Tensor, e: Tensor) -> Tensor:
    """Scale-free: m sum_j (d_j (d_j - v_j))^2 / (sum_j d_j^2)^2, one per start."""
    d, v = p @ span.T, e @ above.T
    return len(span) * (d * (d - v)).square().sum(1) / d.square().sum(1).square()


def _best_above(span: Tensor, above: Tensor, p: Tensor) -> Tensor:
    """Solve for the e that fits a direction best, a linear problem."""
    d = p @ span.T
    rows = d[:, :, None] * above
    e: Tensor = torch.linalg.solve_ex(rows.mT @ rows, rows.mT @ d.square()[..., None])[0]
    return e[..., 0]


def _move(span: Tensor, above: Tensor, p: Tensor, e: Tensor, damping: Tensor) -> Tensor:
    """The damped Gauss-Newton step of every start, `(N, B + r)`, held near the sphere."""
    d, v = p @ span.T, e @ above.T
    jacobian = torch.cat([(2 * d - v)[..., None] * span, -d[..., None] * above], dim=2)
    normal = jacobian.mT @ jacobian
    slope = jacobian.mT @ (d * (d - v))[..., None]
    scale = normal.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    radial = torch.cat([p, torch.zeros_like(e)], dim=1)[..., None]
    identity = torch.eye(normal.shape[1], dtype=p.dtype, device=p.device)
    held = normal + scale * (radial @ radial.mT + damping[:, None, None] * identity)
    downhill: Tensor = torch.linalg.solve_ex(held, -slope)[0]
    return downhill[..., 0]
