"""Factors of a layer's gradient: the batch size, the span of dL/dZ, and candidate directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable

# Singular values of pure noise stay within a few times their median.
_ABOVE_NOISE = 10.0
# Rounding errors of the sum over the batch and of the decomposition, in units of epsilon.
_ROUNDINGS = 100
# Neurons with a smaller row, relative to the root mean square, are weighted down.
_QUIET = 0.3


@dataclass(frozen=True, eq=False)
class Factors:
    """dL/dW = span @ mixtures, of rank B, the batch size, in float64.

    With D = dL/dZ `(m, B)` and the inputs X `(B, n)`, dL/dW = D X and dL/db = D 1. So some matrix
    P `(B, B)` has D = span P, P 1 = total and X = P^-1 mixtures: only P is unknown.

    Args:
        span: Orthonormal columns `(m, B)`.
        mixtures: `(B, n)`.
        total: The bias gradient in the coordinates of the span, `(B,)`.
        noise: Relative error that rounding or noise causes in a direction of the span.
        above: Basis of what the layer above can send down, `(m, r)`, if known. At its active
            neurons, every column of D is a combination of these.
    """

    span: Tensor
    mixtures: Tensor
    total: Tensor
    noise: float
    above: Tensor | None = None

    @property
    def batch_size(self) -> int:
        """The rank B."""
        return self.span.shape[1]

    @property
    def loudness(self) -> float:
        """The root mean square over neurons of the norms of their rows of the span."""
        return float((self.batch_size / len(self.span)) ** 0.5)

    @property
    def live(self) -> Tensor:
        """Which neurons `(m,)` have a gradient, because at least one example activates them."""
        floor = self.loudness * min(max(3 * self.noise, 1e-12), 0.3)
        live: Tensor = self.span.norm(dim=1) > floor
        return live

    @property
    def live_norms(self) -> Tensor:
        """Norms of the live rows `(k, 1)`, for giving every live neuron about the same weight.

        The quietest neurons get less weight: what they are sent is out of proportion to what they
        pass on.
        """
        norms: Tensor = self.span[self.live].norm(dim=1, keepdim=True)
        return norms.clamp_min(_QUIET * self.loudness)

    @property
    def tolerance(self) -> float:
        """Entries of a direction below this share of the largest count as zero."""
        return min(max(100 * self.noise, 1e-8), 0.03)


def factorise_gradient(weight: Tensor, bias: Tensor, *, batch_size: int | None) -> Factors:
    """Split dL/dW `(m, n)`, given dL/db `(m,)`.

    A known batch size is checked against the rank. A lower rank is taken for the number of
    different examples, as an unknown batch size is. An input of zeros, or one that is a combination
    of others, adds nothing to dL/dW = D X, but it does to (dL/dW, dL/db) = D (X, 1). So the bias
    counts where rounding alone hides it.
    """
    double, total = weight.double(), bias.double()
    left, values, _ = torch.linalg.svd(double, full_matrices=False)
    rank, noisy = numerical_rank(values, _rounding(weight))
    if not noisy:
        scaled = total * float(values[0] or 1) / total.norm().clamp_min(1e-300)
        joined = torch.linalg.svd(torch.cat([double, scaled[:, None]], 1), full_matrices=False)
        apart, _ = numerical_rank(joined.S, _rounding(weight))
        if rank < apart <= (batch_size or apart):
            left, values, rank = joined.U, joined.S, apart
    size = _choose_batch_size(batch_size, rank, noisy, len(values))
    span = left[:, :size]
    freedom = max(1, (weight.shape[0] - size) * (weight.shape[1] - size))
    spread = values[size:].square().sum() / freedom
    noise = float((spread * len(weight)).sqrt() / values[size - 1])
    return Factors(span, span.T @ double, span.T @ total, noise)


def numerical_rank(values: Tensor, rounding: float) -> tuple[int, bool]:
    """Count the singular values that stand out, and tell whether the rest is more than rounding.

    Args:
        values: Singular values, largest first; most of them must be rounding or noise.
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
    """Rounding error, relative: of the entries, or of a float64 decomposition if that is larger."""
    computed = 10 * max(matrix.shape) * torch.finfo(torch.float64).eps
    return max(_ROUNDINGS * torch.finfo(matrix.dtype).eps, computed)


def _choose_batch_size(known: int | None, rank: int, noisy: bool, most: int) -> int:
    gradient = "the first layer's gradient has"
    if known is None:
        if rank == 0:
            raise NotApplicable(
                f"{gradient} full rank, so noise or pruning hides how many examples are in the "
                "batch; give the batch size for a best effort"
            )
        return rank
    if known > most:
        raise NotApplicable(
            f"{gradient} rank {most} at most, too little for {known} examples; exact inversion "
            "needs more neurons and pixels than examples"
        )
    if rank == 0 and not noisy:
        raise NotApplicable(f"{gradient} rank 0: it is zero, so it holds no input")
    if not noisy and rank < known:
        # Some inputs are equal, or have no gradient.
        return rank
    if not noisy and rank > known:
        raise NotApplicable(
            f"{gradient} rank {rank}, more than {known} examples can cause; withhold the batch "
            "size to use the rank instead"
        )
    return known


# Squared sine of the angle to the chosen directions below which a candidate is a repeat.
_REPEATED = 1e-6


@dataclass(frozen=True, eq=False)
class Candidates:
    """Unit directions p for which span p may be a column of dL/dZ, up to scale.

    Directions are the rows of `(N, B)`; scores `(N,)` are lower for better ones, and infinite if
    the search failed.
    """

    directions: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    def join(self, others: Candidates) -> Candidates:
        """Concatenate two sets of candidates."""
        return Candidates(
            torch.cat([self.directions, others.directions]), torch.cat([self.scores, others.scores])
        )

    def select_independent(self) -> Candidates:
        """Choose greedily the best linearly independent candidates, at most B.

        Independent sets form a matroid. So the greedy choice is optimal, and a rejected candidate
        need not be considered again when more come in.

        Example:
            >>> found = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
            >>> candidates = Candidates(found, torch.tensor([3.0, 1.0, 2.0]))
            >>> candidates.select_independent().scores.tolist()
            [1.0, 2.0]
        """
        chosen: list[int] = []
        rest, scores = self.directions, self.scores
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


def find_silent(rows: Tensor, directions: Tensor, tolerance: float) -> Tensor:
    """Which neurons `(N, k)` each direction is zero at, relative to its largest entry."""
    size = (directions @ rows.T).abs()
    return size <= tolerance * size.amax(1, keepdim=True)


# Neurons per example at which sparsity alone separates half of the batches, as measured: if no
# examples are alike, and in addition for each example that is sent the same from above.
_SPARSE_HALF, _PER_ALIKE = 8.5, 1.5


def determined_probability(*, neurons: int, batch_size: int, silent: float = 0.5) -> float:
    """Probability that every example leaves enough neurons silent to be told apart.

    A direction in a span of B dimensions is fixed by B - 1 silent neurons and checked by one more:

        Prob(Binomial(m, s) >= B)^B

    Args:
        neurons: Number m of neurons that at least one example activates.
        batch_size: B.
        silent: Share s of neurons that one input leaves silent.

    Example:
        >>> round(determined_probability(neurons=64, batch_size=8), 4)
        1.0
        >>> round(determined_probability(neurons=16, batch_size=8), 4)
        0.0164
    """
    from scipy.stats import binom

    return float(binom.sf(batch_size - 1, neurons, silent)) ** batch_size


def success_probability(
    *, neurons: int, batch_size: int, samples: int, silent: float = 0.5
) -> float:
    """Probability that kernel sampling finds all examples.

    For every example, at least one of N = `samples` draws of B - 1 neurons must be silent:

        Prob(determined) (1 - (1 - s^(B-1))^N)^B

    The number of draws needed grows as s^-B: 2^18 draws are enough for 16 examples but not for 20.
    The estimate assumes that every input leaves half of the neurons silent. An input that leaves
    fewer silent is much harder to find. The arguments are those of `determined_probability`.

    Example:
        >>> round(success_probability(neurons=256, batch_size=16, samples=2**18), 3)
        0.995
        >>> round(success_probability(neurons=256, batch_size=16, samples=2**18, silent=0.45), 3)
        0.033
        >>> round(success_probability(neurons=256, batch_size=20, samples=2**18), 3)
        0.0

    References:
        Dimitrov et al., 2024 (dimitrov2024spear)
    """
    missed = (1 - silent ** (batch_size - 1)) ** samples
    determined = determined_probability(neurons=neurons, batch_size=batch_size, silent=silent)
    return determined * ((1 - missed) ** batch_size)


def sparse_probability(*, neurons: int, batch_size: int, sent: int | None = None) -> float:
    """Probability that sparse directions find all examples, as measured on untrained networks.

    Directions that are sparse by chance become rare as the neurons per example grow. Examples are
    alike if the layer above sends them the same. If it is the last layer, that is the case for
    examples of one label.

        Prob(determined) / (1 + exp(h - m / B)),   h = 8.5 + 1.5 B / r

    r = `sent` is the rank of what is sent down to the batch; None means that no examples are alike.
    The other arguments are those of `determined_probability`.

    Example:
        >>> round(sparse_probability(neurons=1024, batch_size=64), 3)
        0.998
        >>> round(sparse_probability(neurons=1024, batch_size=64, sent=9), 3)
        0.04
        >>> round(sparse_probability(neurons=2048, batch_size=64, sent=9), 3)
        1.0
    """
    determined = determined_probability(neurons=neurons, batch_size=batch_size)
    half = _SPARSE_HALF + _PER_ALIKE * batch_size / (batch_size if sent is None else sent)
    return determined / (1 + math.exp(half - neurons / batch_size))
