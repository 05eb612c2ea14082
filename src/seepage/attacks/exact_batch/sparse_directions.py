"""Find directions by sparsity alone, excluding examples already found to simplify the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.exact_batch.span_factors import (
    Candidates,
    Factors,
    empty_candidates,
    require_at_least_one,
    sparse_probability,
)
from seepage.core import Rng
from seepage.core.errors import InvalidValue

# Entries of this size count half as nonzero, at first and in the end; a random entry has size 1.
_WIDTHS = (1.0, 0.3)
_STEP = 0.75
# Directions nearer than this cosine are the same.
_SAME = 0.98


def whiten_rows(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Rows `(k, B)` as `(k, rank)` of unit covariance, and the map `(B, rank)` that makes them.

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


def descend(white: Tensor, starts: Tensor, *, steps: int) -> Tensor:
    """Go down to directions c `(N, r)` on the sphere that make many entries of d = white c small.

    The smoothed number of nonzero entries is

        sum_j 1 - exp(-d_j^2 / (2 w^2)),

    and the width w shrinks from that of a random direction to where zeros stand out. Large entries
    have no say in it, unlike in sum_j d_j^4, whose maxima are single loud neurons.

    Args:
        white: Whitened rows `(k, r)`.
        starts: `(N, r)`, of any length.
        steps: Of gradient descent.
    """
    c = unit(starts)
    first, last = _WIDTHS
    for step in range(steps):
        width = first * (last / first) ** (step / max(1, steps - 1))
        d = c @ white.T
        slope = (d * torch.exp(-0.5 * (d / width).square())) @ white / len(white)
        slope = slope - (slope * c).sum(1, keepdim=True) * c
        c = unit(c - _STEP / width * slope)
    return c


def fit_trimmed(rows: Tensor, directions: Tensor, *, silent: float, steps: int) -> Tensor:
    """Least trimmed squares: the direction that lets least through the quietest entries, anew.

    Once the quietest share of the entries holds none but zeros the direction is exact.

    Args:
        rows: `(k, r)`.
        directions: Approximate, `(N, r)`.
        silent: The share of entries that is taken for zero.
        steps: How often the quietest are chosen anew.
    """
    count = max(rows.shape[1], int(silent * len(rows)))
    for _ in range(steps):
        quietest = (directions @ rows.T).abs().topk(count, dim=1, largest=False).indices
        directions = torch.stack([_quietest(rows[chosen]) for chosen in quietest])
    return directions


def distinct(directions: Tensor, known: Tensor) -> Tensor:
    """The unit directions `(n, r)` that are neither of the known ones `(k, r)` nor repeated.

    Example:
        >>> found = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.6, -0.8]])
        >>> distinct(found, torch.tensor([[1.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    seen = (directions @ unit(known).T).abs().gt(_SAME).any(1)
    alike = (directions @ directions.T).abs() > _SAME
    kept: list[int] = []
    for number in range(len(directions)):
        if not seen[number]:
            kept.append(number)
            seen = seen | alike[number]
    return directions[kept]


def unit(vectors: Tensor) -> Tensor:
    """Each row divided by its length; a row of zeros stays one."""
    return torch.nan_to_num(vectors / vectors.norm(dim=1, keepdim=True))


def _quietest(rows: Tensor) -> Tensor:
    """The unit vector that rows map to the least, whose largest entry is positive.

    Which of the two signs an eigenvector comes with is chance, and runs are to repeat.
    """
    vector: Tensor = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
    return vector * vector[vector.abs().argmax()].sign()


# The share of a person's active neurons, at least, at which another is silent.
_AGREEING = 0.05


def find_silent(rows: Tensor, directions: Tensor, tolerance: float) -> Tensor:
    """Which neurons `(N, k)` each direction is zero at, relative to where it is largest."""
    size = (directions @ rows.T).abs()
    silent: Tensor = size <= tolerance * size.amax(1, keepdim=True)
    return silent


def share(silent: Tensor) -> Tensor:
    """The share of neurons that is silent, `(N,)`."""
    return silent.double().mean(1)


def add_multiple(rows: Tensor, directions: Tensor, person: Tensor) -> Tensor:
    """Add to each direction `(N, B)` the multiple of a found example that zeroes most entries.

    The wanted t is the one on which neurons agree: the middle of the shortest interval that holds
    a given share of -d_j(q) / d_j(p).

    Args:
        rows: `(k, B)`, of neurons active for the person.
        directions: Known but for the multiple.
        person: `(B,)`.
    """
    agreeing = max(4, int(_AGREEING * len(rows)))
    if not len(directions) or len(rows) <= agreeing:
        return directions
    wanted = (-(directions @ rows.T) / (rows @ person)).sort(1).values
    lengths = wanted[:, agreeing:] - wanted[:, :-agreeing]
    middle = lengths.argmin(1, keepdim=True) + agreeing // 2
    return unit(directions + wanted.gather(1, middle) * person)


# Neurons that must be left for each direction when people are taken out.
_NEURONS_EACH = 5
_QUIET = 0.3
_MOST_GROUPS = 16
# Chance makes far fewer neurons silent; who leaves fewer is not told from a mixture of people.
_ENOUGH_SILENT = 0.3
# Noise that leaves no zero to be told from other entries.
_LOUDEST_NOISE = 3e-4
# The cosine above which two directions are one.
_ONE = 1 - 1e-6


@dataclass(frozen=True, kw_only=True)
class SparseDirections:
    """Sparsely-used dictionary learning: dL/dZ = span P has zeros where neurons are silent.

    Nothing but these zeros is used: neither labels nor the layer above. Each round descends from
    many random directions to where the smoothed number of nonzero entries is least (`descend`),
    makes the zeros exact by least trimmed squares (`fit_trimmed`), and keeps directions with more
    zeros than chance makes.

    Two people with the same label have similar columns, and the one hides the other. So a round
    first takes out some that are found: of the neurons silent for all of them, no entry tells of
    them, and the others are as sparse as before in fewer dimensions. A direction q that is found
    there lacks a multiple of each person p taken out, which is what most neurons agree upon:

        d_j(q) + t d_j(p) = 0   at every second neuron active for p.

    Inputs whose mean is not subtracted have most neurons active for all of them or for none; such
    neurons tell nobody apart, and a far wider layer is needed.

    Args:
        starts: In each round.
        steps: Of the descent.
        refinements: Of least trimmed squares.
        silent: The share of neurons that everybody leaves silent at least.
        rounds: At most.

    Deviations: the paper names sparsely-used dictionary learning and was not at hand; contrast,
    refinement and taking people out are ours. Maximising the fourth power over orthogonal matrices
    finds hardly anybody at 16 neurons per person: single loud neurons make higher maxima, and the
    columns of people with the same label are far from orthogonal.

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
        """Check the numbers."""
        require_at_least_one(
            starts=self.starts,
            steps=self.steps,
            refinements=self.refinements,
            rounds=self.rounds,
        )
        if not 0 < self.silent < 1:
            raise InvalidValue(f"expected 0 < silent < 1, got {self.silent!r}")

    def probability(self, factors: Factors) -> float:
        """That there are neurons enough, and zeros that stand out; see `sparse_probability`."""
        if factors.people == 1 or factors.noise > _LOUDEST_NOISE:
            return 0.0
        sent = None if factors.above is None else factors.above.shape[1]
        neurons = int(factors.live.sum())
        return sparse_probability(neurons=neurons, people=factors.people, sent=sent)

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """One round of starts; the fewer people are missing, the more groups of others are out."""
        live = factors.live
        loudness = factors.span[live].norm(dim=1, keepdim=True)
        rows = factors.span[live] / loudness.clamp_min(_QUIET * factors.loudness)
        missing = factors.people - len(found)
        groups = min(_MOST_GROUPS, self.starts, factors.people // max(1, missing))
        ends = empty_candidates(factors.span)
        for group in range(groups):
            key = rng.fork("group", group)
            out = _choose_excluded(found.directions, len(rows), rng=key.fork("out"))
            directions = self._among(
                factors, rows, found.directions, out, self.starts // groups, rng=key
            )
            ends = ends.join(self._exact(factors, rows, directions)).select_independent()
        people = found.join(ends).select_independent()
        mixed = people if missing <= 0 else ends
        return ends.join(_separate_pairs(factors, rows, mixed, people))

    def _among(
        self, factors: Factors, rows: Tensor, found: Tensor, out: Tensor, count: int, *, rng: Rng
    ) -> Tensor:
        """Directions `(n, B)` that are sparse with some people out."""
        quiet = find_silent(rows, out, factors.tolerance)
        left = rows[quiet.all(0)]
        if len(left) < factors.people:
            return found[:0]
        white, there = whiten_rows(left, factors.people - len(out))
        known = unit(torch.linalg.lstsq(there, found.T).solution.T)
        starts = _draw_starts(known, count, white, rng=rng)
        ends = distinct(descend(white, starts, steps=self.steps), known)
        if not len(ends):
            return found[:0]
        ends = fit_trimmed(white, ends, silent=self.silent, steps=self.refinements)
        ends = ends[share(find_silent(white, ends, factors.tolerance)) > _ENOUGH_SILENT]
        directions = ends @ there.T
        for number, person in enumerate(out):
            others = quiet[number + 1 :].all(0)
            directions = add_multiple(rows[others & ~quiet[number]], directions, person)
        return directions

    def _exact(self, factors: Factors, rows: Tensor, directions: Tensor) -> Candidates:
        """Directions as all neurons have them."""
        if not len(directions):
            return empty_candidates(factors.span)
        white, there = whiten_rows(rows, factors.people)
        back = unit(torch.linalg.lstsq(there, directions.T).solution.T)
        exact = unit(fit_trimmed(white, back, silent=self.silent, steps=1) @ there.T)
        return _score(factors, rows, exact)


def _separate_pairs(
    factors: Factors, rows: Tensor, ends: Candidates, people: Candidates
) -> Candidates:
    """What is left of each end when a multiple of one of the people is taken from it.

    Two people who leave much the same neurons silent make a sparse difference, which is an end as
    well; with the one of them it gives the other.
    """
    both = empty_candidates(factors.span)
    for person in people.directions:
        active = ~find_silent(rows, person[None], factors.tolerance)[0]
        apart = ends.directions[(ends.directions @ person).abs() < _ONE]
        rest = _score(factors, rows, add_multiple(rows[active], apart, person))
        both = both.join(rest).select_independent()
    return both


def _score(factors: Factors, rows: Tensor, directions: Tensor) -> Candidates:
    """Those with zeros enough, by the share of neurons that is not silent."""
    if not len(directions):
        return empty_candidates(factors.span)
    silent = share(find_silent(rows, directions, factors.tolerance))
    kept = silent > _ENOUGH_SILENT
    return Candidates(directions[kept], 1 - silent[kept])


def _choose_excluded(found: Tensor, neurons: int, *, rng: Rng) -> Tensor:
    """Some of those found: at most so many that neurons enough are silent for all of them."""
    people = found.shape[1]
    spare = neurons / (_NEURONS_EACH * people)
    most = min(people - 1, int(math.log2(max(1.0, spare))))
    count = min(len(found), 1 + int(rng.fork("count").uniform((1,)) * most), most)
    return found[rng.fork("whom").permutation(len(found))[:count].to(found.device)]


def _draw_starts(known: Tensor, count: int, white: Tensor, *, rng: Rng) -> Tensor:
    """Random starts, half of them orthogonal to what is known and half some way off from it."""
    starts = rng.fork("starts").normal((count, white.shape[1]), like=white)
    away = rng.fork("away").uniform((count, 1), like=white)
    away[::2] = 1
    left, values, _ = torch.linalg.svd(known.T, full_matrices=False)
    basis = left[:, values > 1e-6]
    projected: Tensor = starts - away * (starts @ basis) @ basis.T
    return projected
