"""What the gradient of one layer says at once: how many people, and the span of their inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable

# Singular values of noise alone stay within a few times their median.
_ABOVE_NOISE = 10.0
# Rounding errors of a sum over the batch and of the decomposition itself.
_ROUNDINGS = 100


@dataclass(frozen=True, eq=False)
class Factors:
    """dL/dW = span @ mixtures, of the rank that the batch size gives it, in float64.

    With D = dL/dZ `(m, B)` and the inputs X `(B, n)`, dL/dW = D X and dL/db = D 1. So some matrix
    P `(B, B)` has D = span P, P 1 = total and X = P^-1 mixtures: only P is unknown.

    Args:
        span: Orthonormal columns `(m, B)`.
        mixtures: `(B, n)`.
        total: The bias gradient in the coordinates of the span, `(B,)`.
        noise: Deviation of a direction in the span that rounding or noise causes, relative to it.
        above: What the layer above can send down, `(m, r)`: every column of D is, at its active
            neurons, a combination of these; None if that is not known.
    """

    span: Tensor
    mixtures: Tensor
    total: Tensor
    noise: float
    above: Tensor | None = None

    @property
    def people(self) -> int:
        """The batch size B."""
        return self.span.shape[1]

    @property
    def loudness(self) -> float:
        """The root mean square over neurons of their rows of the span."""
        return float((self.people / len(self.span)) ** 0.5)

    @property
    def live(self) -> Tensor:
        """Which neurons `(m,)` say anything: those that were active for somebody."""
        floor = self.loudness * min(max(3 * self.noise, 1e-12), 0.3)
        live: Tensor = self.span.norm(dim=1) > floor
        return live

    @property
    def tolerance(self) -> float:
        """How large an entry of a direction may be, relative to the largest, that is zero."""
        return min(max(100 * self.noise, 1e-8), 0.03)

    def below(self, above: Tensor) -> Factors:
        """The same with what the layer above can send down."""
        return replace(self, above=above)


def factorise(weight: Tensor, bias: Tensor, *, people: int | None) -> Factors:
    """Split dL/dW `(m, n)`; the batch size is checked against its rank, or read off it if None.

    Args:
        weight: dL/dW.
        bias: dL/db, `(m,)`.
        people: The batch size, if known.
    """
    left, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
    rank, noisy = numerical_rank(values, _rounding(weight))
    people = _people(people, rank, noisy, len(values))
    span = left[:, :people]
    freedom = max(1, (weight.shape[0] - people) * (weight.shape[1] - people))
    spread = values[people:].square().sum() / freedom
    noise = float((spread * len(weight)).sqrt() / values[people - 1])
    mixtures = values[:people, None] * right[:people]
    return Factors(span, mixtures, span.T @ bias.double(), noise)


def numerical_rank(values: Tensor, rounding: float) -> tuple[int, bool]:
    """How many singular values stand out, and whether more than rounding lies below them.

    Args:
        values: Singular values, largest first; most of them are taken to be rounding or noise.
        rounding: Relative size below which a value is rounding.

    Example:
        >>> numerical_rank(torch.tensor([3.0, 1.0, 1e-9, 1e-9, 1e-9]), 1e-6)
        (2, False)
        >>> numerical_rank(torch.tensor([3.0, 1.0, 1e-2, 1e-2, 1e-2]), 1e-6)
        (2, True)
    """
    rounded, drowned = rounding * float(values[0]), _ABOVE_NOISE * float(values.median())
    return int((values > max(rounded, drowned)).sum()), drowned > rounded


def column_space(matrix: Tensor, *, at_most: int) -> Tensor:
    """Orthonormal basis of the columns of a gradient, `(m, r)` with r <= at_most, in float64."""
    left, values, _ = torch.linalg.svd(matrix.double(), full_matrices=False)
    significant = int((values > values[0] * _rounding(matrix)).sum())
    basis: Tensor = left[:, : min(significant, at_most)]
    return basis


def _rounding(matrix: Tensor) -> float:
    return _ROUNDINGS * torch.finfo(matrix.dtype).eps


def _people(people: int | None, rank: int, noisy: bool, most: int) -> int:
    if people is None:
        if rank == 0:
            raise NotApplicable(
                "the first layer's gradient has full rank, so noise or pruning hides how many "
                "people are in the batch; give the batch size for a best effort"
            )
        return rank
    if people > most:
        raise NotApplicable(
            f"the first layer's gradient has rank {most} at most, too little for {people} people; "
            "exact inversion needs more neurons and pixels than people"
        )
    if not noisy and rank < people:
        raise NotApplicable(
            f"the first layer's gradient has rank {rank} for {people} people: some inputs are "
            "equal, or have no gradient; withhold the batch size to recover the others"
        )
    if not noisy and rank > people:
        raise NotApplicable(
            f"the first layer's gradient has rank {rank}, more than {people} people can cause; "
            "withhold the batch size to let the rank speak"
        )
    return people
