"""Find directions by sparsity alone, excluding examples already found to simplify the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.exact_batch._span_factors import (
    Candidates,
    Factors,
    empty_candidates,
    find_silent,
    sparse_probability,
)
from seepage.core import Rng
from seepage.core.errors import InvalidValue, require_at_least

# Entries of this size count half as nonzero, at first and at the end; a random entry has size 1.
_WIDTHS = (1.0, 0.3)
_STEP = 0.75
# Directions with a larger cosine count as the same: after the descent, and once they are exact.
_SAME, _EQUAL = 0.98, 1 - 1e-6
# Smallest share of an example's active neurons at which another example is silent.
_AGREEING = 0.05
# Neurons that must remain for each direction when examples are excluded.
_NEURONS_EACH = 5
_MOST_GROUPS = 16
# A mixture of examples leaves fewer neurons silent than this, by chance.
_ENOUGH_SILENT = 0.3
# Above this noise zeros cannot be told from other entries.
_LOUDEST_NOISE = 3e-4


def whiten_rows(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Map rows `(k, B)` to `(k, rank)` with unit covariance; also return the map `(B, rank)`.

    A unit vector c in the new coordinates is the direction map @ c in the old ones.

    Example:
        >>> rows = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0], [0.0, -1.0]])
        >>> white, there = whiten_rows(rows, 2)
        >>> bool((white.T @ white / 4).allclose(torch.eye(2)))
        True
    """
    values, axes = torch.linalg.eigh(rows.T @ rows / len(rows))
    values = values.clamp_min(float(values[-1]) * 1e-12)
    there = axes[:, -rank:] * values[-rank:].rsqrt()
    return rows @ there, there


def descend_from_starts(white: Tensor, starts: Tensor, *, steps: int) -> Tensor:
    """Find directions c `(N, r)` on the sphere that make many entries of d = white c small.

    Gradient descent from starts `(N, r)` minimises the smoothed number of nonzero entries,

        sum_j 1 - exp(-d_j^2 / (2 w^2)),

    where the width w shrinks from the size of a random entry until zeros stand out. Large entries
    do not count more than others. In sum_j d_j^4 they do, and its maxima are single loud neurons.
    """
    c = normalise_rows(starts)
    first, last = _WIDTHS
    for step in range(steps):
        width = first * (last / first) ** (step / max(1, steps - 1))
        d = c @ white.T
        slope = (d * torch.exp(-0.5 * (d / width).square())) @ white / len(white)
        slope = slope - (slope * c).sum(1, keepdim=True) * c
        c = normalise_rows(c - _STEP / width * slope)
    return c


def fit_trimmed(rows: Tensor, directions: Tensor, *, silent: float, steps: int) -> Tensor:
    """Least trimmed squares: minimise each direction's smallest entries, chosen anew each step.

    A direction is exact as soon as its smallest entries are all zeros.

    Args:
        rows: `(k, r)`.
        directions: Approximate, `(N, r)`.
        silent: Share of entries that are taken for zero.
        steps: How often the smallest entries are chosen.
    """
    count = max(rows.shape[1], int(silent * len(rows)))
    for _ in range(steps):
        quietest = (directions @ rows.T).abs().topk(count, dim=1, largest=False).indices
        directions = torch.stack([_smallest_direction(rows[chosen]) for chosen in quietest])
    return directions


def _smallest_direction(rows: Tensor) -> Tensor:
    """The unit vector that rows map to the smallest vector.

    Its largest entry is made positive: the sign of an eigenvector is arbitrary, and runs must
    repeat.
    """
    vector: Tensor = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
    return vector * vector[vector.abs().argmax()].sign()


def _drop_repeated(directions: Tensor, known: Tensor) -> Tensor:
    """Keep the unit directions `(n, r)` that are neither known `(k, r)` nor repeated.

    Example:
        >>> found = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.6, -0.8]])
        >>> _drop_repeated(found, torch.tensor([[1.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    seen = (directions @ normalise_rows(known).T).abs().gt(_SAME).any(1)
    same = (directions @ directions.T).abs() > _SAME
    kept: list[int] = []
    for number in range(len(directions)):
        if not seen[number]:
            kept.append(number)
            seen = seen | same[number]
    return directions[kept]


def normalise_rows(vectors: Tensor) -> Tensor:
    """Divide each row by its length; a row of zeros stays zero."""
    return torch.nan_to_num(vectors / vectors.norm(dim=1, keepdim=True))


def _add_multiple(rows: Tensor, directions: Tensor, example: Tensor) -> Tensor:
    """Add to each direction q `(N, B)` the multiple of a found example p that zeroes most entries.

    The multiple is the value on which neurons agree: the middle of the shortest interval that
    holds a given share of -d_j(q) / d_j(p).

    Args:
        rows: `(k, B)`, of neurons that the example activates.
        directions: Known except for the multiple.
        example: `(B,)`.
    """
    agreeing = max(4, int(_AGREEING * len(rows)))
    if not len(directions) or len(rows) <= agreeing:
        return directions
    wanted = (-(directions @ rows.T) / (rows @ example)).sort(1).values
    lengths = wanted[:, agreeing:] - wanted[:, :-agreeing]
    middle = lengths.argmin(1, keepdim=True) + agreeing // 2
    return normalise_rows(directions + wanted.gather(1, middle) * example)


@dataclass(frozen=True, kw_only=True)
class SparseDirections:
    """Sparsely-used dictionary learning: dL/dZ = span P has zeros where neurons are silent.

    Only these zeros are used, neither labels nor the layer above. Each round descends from many
    random directions to few nonzero entries (`descend`), makes the zeros exact by least trimmed
    squares (`fit_trimmed`), and keeps directions with more zeros than chance produces.

    Two examples of one label have similar columns, and one hides the other. So a round first
    excludes some examples that are already found: it uses only neurons that are silent for all of
    them. The other columns are as sparse there as before, in fewer dimensions. A direction q found
    there lacks a multiple t of each excluded example p, the value on which most neurons agree:

        d_j(q) + t d_j(p) = 0   at every second neuron active for p.

    If the mean of the inputs is not subtracted, most neurons are active for all examples or for
    none. Such neurons do not tell examples apart, so the layer must be far wider.

    Args:
        starts: Random starts in each round.
        steps: Steps of the descent.
        refinements: Steps of least trimmed squares.
        silent: Smallest share of neurons that an example leaves silent.
        rounds: Largest number of rounds.

    Deviations: the paper names sparsely-used dictionary learning but was not available to us; the
    contrast, the refinement and the exclusion of examples are ours. Maximising the fourth power
    over orthogonal matrices finds hardly any example at 16 neurons per example: single loud neurons
    make higher maxima, and columns of examples with the same label are far from orthogonal.

    References:
        Bakarsky et al., 2025 (bakarsky2025spear); Spielman et al., 2012 (spielman2012exact);
        Mohimani et al., 2009 (mohimani2009fast); Rousseeuw, 1984 (rousseeuw1984least); Zhai et
        al., 2020 (zhai2020complete)
    """

    starts: int = 128
    steps: int = 150
    refinements: int = 6
    silent: float = 0.35
    rounds: int = 96

    quick_up_to: ClassVar[float] = math.inf
    patience: ClassVar[float] = 24

    def __post_init__(self) -> None:
        require_at_least(
            1,
            starts=self.starts,
            steps=self.steps,
            refinements=self.refinements,
            rounds=self.rounds,
        )
        if not 0 < self.silent < 1:
            raise InvalidValue(f"expected 0 < silent < 1, got {self.silent!r}")

    def probability(self, factors: Factors) -> float:
        """Probability that there are enough neurons and clear zeros; see `sparse_probability`."""
        if factors.batch_size == 1 or factors.noise > _LOUDEST_NOISE:
            return 0.0
        sent = None if factors.above is None else factors.above.shape[1]
        neurons = int(factors.live.sum())
        return sparse_probability(neurons=neurons, batch_size=factors.batch_size, sent=sent)

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """Run one round; the fewer examples are missing, the more groups are excluded in turn."""
        rows = factors.span[factors.live] / factors.live_norms
        missing = factors.batch_size - len(found)
        groups = min(_MOST_GROUPS, self.starts, factors.batch_size // max(1, missing))
        ends = empty_candidates(factors.span)
        for group in range(groups):
            key = rng.fork("group", group)
            out = _choose_excluded(found.directions, len(rows), rng=key.fork("out"))
            directions = self._search_without(
                factors, rows, found.directions, out, self.starts // groups, rng=key
            )
            ends = ends.join(self._refine(factors, rows, directions)).select_independent()
        known = found.join(ends).select_independent()
        mixed = known if missing <= 0 else ends
        return ends.join(_separate_pairs(factors, rows, mixed, known))

    def _search_without(
        self, factors: Factors, rows: Tensor, found: Tensor, out: Tensor, count: int, *, rng: Rng
    ) -> Tensor:
        """Find directions `(n, B)` that are sparse when the examples `out` are excluded."""
        quiet = find_silent(rows, out, factors.tolerance)
        left = rows[quiet.all(0)]
        if len(left) < factors.batch_size:
            return found[:0]
        white, there = whiten_rows(left, factors.batch_size - len(out))
        known = normalise_rows(torch.linalg.lstsq(there, found.T).solution.T)
        starts = _draw_starts(known, count, white, rng=rng)
        ends = _drop_repeated(descend_from_starts(white, starts, steps=self.steps), known)
        if not len(ends):
            return found[:0]
        ends = fit_trimmed(white, ends, silent=self.silent, steps=self.refinements)
        silent = find_silent(white, ends, factors.tolerance).double().mean(1)
        directions = ends[silent > _ENOUGH_SILENT] @ there.T
        for number, example in enumerate(out):
            others = quiet[number + 1 :].all(0)
            directions = _add_multiple(rows[others & ~quiet[number]], directions, example)
        return directions

    def _refine(self, factors: Factors, rows: Tensor, directions: Tensor) -> Candidates:
        """Fit the directions to all neurons."""
        if not len(directions):
            return empty_candidates(factors.span)
        white, there = whiten_rows(rows, factors.batch_size)
        back = normalise_rows(torch.linalg.lstsq(there, directions.T).solution.T)
        exact = normalise_rows(fit_trimmed(white, back, silent=self.silent, steps=1) @ there.T)
        return _score_directions(factors, rows, exact)


def _separate_pairs(
    factors: Factors, rows: Tensor, ends: Candidates, known: Candidates
) -> Candidates:
    """Subtract a multiple of each known example from each end.

    Two examples that leave much the same neurons silent have a sparse difference, which is an end
    as well. Together with one of the two it gives the other.
    """
    both = empty_candidates(factors.span)
    for example in known.directions:
        active = ~find_silent(rows, example[None], factors.tolerance)[0]
        apart = ends.directions[(ends.directions @ example).abs() < _EQUAL]
        rest = _score_directions(factors, rows, _add_multiple(rows[active], apart, example))
        both = both.join(rest).select_independent()
    return both


def _score_directions(factors: Factors, rows: Tensor, directions: Tensor) -> Candidates:
    """Keep directions with enough zeros; the score is the share of neurons that are not silent."""
    if not len(directions):
        return empty_candidates(factors.span)
    silent = find_silent(rows, directions, factors.tolerance).double().mean(1)
    kept = silent > _ENOUGH_SILENT
    return Candidates(directions[kept], 1 - silent[kept])


def _choose_excluded(found: Tensor, neurons: int, *, rng: Rng) -> Tensor:
    """Draw examples to exclude, so few that enough neurons are silent for all of them."""
    size = found.shape[1]
    spare = neurons / (_NEURONS_EACH * size)
    most = min(size - 1, int(math.log2(max(1.0, spare))))
    count = min(len(found), 1 + int(rng.fork("count").uniform((1,)) * most), most)
    return found[rng.fork("whom").permutation(len(found))[:count].to(found.device)]


def _draw_starts(known: Tensor, count: int, white: Tensor, *, rng: Rng) -> Tensor:
    """Draw starts; half are orthogonal to the known directions, half partly turned away."""
    starts = rng.fork("starts").normal((count, white.shape[1]), like=white)
    away = rng.fork("away").uniform((count, 1), like=white)
    away[::2] = 1
    left, values, _ = torch.linalg.svd(known.T, full_matrices=False)
    basis = left[:, values > 1e-6]
    projected: Tensor = starts - away * (starts @ basis) @ basis.T
    return projected
