"""Factors of a layer's gradient: the batch size, the span of dL/dZ, and candidate directions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue, NotApplicable

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
        """Which neurons `(m,)` have a gradient, because at least one example activates them."""
        floor = self.loudness * min(max(3 * self.noise, 1e-12), 0.3)
        live: Tensor = self.span.norm(dim=1) > floor
        return live

    @property
    def tolerance(self) -> float:
        """Entries of a direction below this share of the largest count as zero."""
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


# The sine of the angle to the directions already chosen, squared, below which one is a repeat.
_REPEATED = 1e-6


@dataclass(frozen=True, eq=False)
class Candidates:
    """Unit directions p `(N, B)`, of which span p may be a column of dL/dZ, up to scale.

    Args:
        directions: One per row.
        scores: `(N,)`, lower is better; infinite where the search got nowhere.
    """

    directions: Tensor
    scores: Tensor

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.scores)

    def join(self, others: Candidates) -> Candidates:
        """Concatenate two sets of candidates."""
        return Candidates(
            torch.cat([self.directions, others.directions]), torch.cat([self.scores, others.scores])
        )

    def select_independent(self) -> Candidates:
        """Choose greedily the best linearly independent candidates, at most B.

        Independent sets are a matroid, so that greedy choice is optimal, and what it passes over
        never has to be looked at again when more candidates come in.

        Example:
            >>> found = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
            >>> candidates = Candidates(found, torch.tensor([3.0, 1.0, 2.0]))
            >>> candidates.select_independent().scores.tolist()
            [1.0, 2.0]
        """
        chosen: list[int] = []
        rest = self.directions
        scores = self.scores
        for _ in range(min(self.directions.shape)):
            size = rest.square().sum(1)
            scores = torch.where(size > _REPEATED, scores, torch.inf)
            best = int(scores.argmin())
            if not bool(scores[best] < torch.inf):
                break
            chosen.append(best)
            axis = rest[best] / size[best].sqrt()
            rest = rest - torch.outer(rest @ axis, axis)
        return Candidates(self.directions[chosen], self.scores[chosen])


def empty_candidates(span: Tensor) -> Candidates:
    """No candidate for the directions of a span `(m, B)`."""
    return Candidates(span.new_zeros(0, span.shape[1]), span.new_zeros(0))


# Neurons per person at which sparsity alone finds every second batch, as measured: with nobody
# alike, and more for each who shares what the layer above sends down.
_SPARSE_HALF, _PER_ALIKE = 8.5, 1.5


def determined_probability(*, neurons: int, people: int, silent: float = 0.5) -> float:
    """Probability that everybody leaves enough neurons silent to be told apart.

    A direction in a span of B dimensions is fixed by B - 1 silent neurons and checked by one more:

        Prob(Binomial(m, s) >= B)^B

    Args:
        neurons: Width m of the layer, less those nobody activates.
        people: Batch size B.
        silent: Share s of neurons that one input leaves silent.

    Example:
        >>> round(determined_probability(neurons=64, people=8), 4)
        1.0
        >>> round(determined_probability(neurons=16, people=8), 4)
        0.0164
    """
    from scipy.stats import binom

    return float(binom.sf(people - 1, neurons, silent)) ** people


def success_probability(*, neurons: int, people: int, samples: int, silent: float = 0.5) -> float:
    """Probability that kernel sampling finds everybody.

    Of N draws of B - 1 neurons each, one at least must be silent for every person:

        Prob(determined) (1 - (1 - s^(B-1))^N)^B

    The draws that are needed grow as s^-B: a quarter of a million serves 16 people, and not 20. It
    is an estimate for inputs that all leave half of the neurons silent; one that leaves fewer is
    much harder to hit.

    Args:
        neurons: Width m of the layer, less those nobody activates.
        people: Batch size B.
        samples: Number N of draws.
        silent: Share s of neurons that one input leaves silent.

    Example:
        >>> round(success_probability(neurons=256, people=16, samples=2**18), 3)
        0.995
        >>> round(success_probability(neurons=256, people=16, samples=2**18, silent=0.45), 3)
        0.033
        >>> round(success_probability(neurons=256, people=20, samples=2**18), 3)
        0.0

    References:
        Dimitrov et al., 2024 (dimitrov2024spear)
    """
    missed = (1 - silent ** (people - 1)) ** samples
    return determined_probability(neurons=neurons, people=people, silent=silent) * (
        (1 - missed) ** people
    )


def sparse_probability(
    *, neurons: int, people: int, sent: int | None = None, silent: float = 0.5
) -> float:
    """Probability that sparse directions find everybody, as measured on untrained networks.

    Directions that are sparse by chance become rare as neurons per person grow. People to whom the
    layer above sends the same, as it does to those with one label if it is the last, are alike:

        Prob(determined) / (1 + exp(h - m / B)),   h = 8.5 + 1.5 B / r

    Args:
        neurons: Width m of the layer, less those nobody activates.
        people: Batch size B.
        sent: The rank r of what is sent down to all of them; None takes nobody for alike.
        silent: Share of neurons that one input leaves silent.

    Example:
        >>> round(sparse_probability(neurons=1024, people=64), 3)
        0.998
        >>> round(sparse_probability(neurons=1024, people=64, sent=9), 3)
        0.04
        >>> round(sparse_probability(neurons=2048, people=64, sent=9), 3)
        1.0
    """
    determined = determined_probability(neurons=neurons, people=people, silent=silent)
    half = _SPARSE_HALF + _PER_ALIKE * people / (people if sent is None else sent)
    return determined / (1 + math.exp(half - neurons / people))


def require_at_least_one(**numbers: int) -> None:
    """Raise `InvalidValue` for a count below one."""
    for name, value in numbers.items():
        if value < 1:
            raise InvalidValue(f"expected {name} >= 1, got {value!r}")
