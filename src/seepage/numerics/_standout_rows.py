"""Which rows of a noisy matrix hold more than noise, at a stated rate of false alarms."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from seepage.numerics._row_span import principal_directions

# Levels at which the noise is read off: low enough that rows with a signal hardly move them.
_LOW, _MIDDLE = 0.25, 0.5
# Singular values of noise exceed their limit by about this factor in small matrices.
_EDGE = 1.05
# With fewer rows, noise cannot be told from signals.
_FEWEST = 8
# Rows above this probability are taken for noise, and their entries are mixed to so many rows, or
# so many for each row. The rate is calibrated where so many of the mixed rows lie above it.
_QUIET, _MIXED, _TIMES, _ABOVE = 1e-3, 2**15, 8, 50
# Entries in memory at once.
_HELD = 2**22
# With a smaller share of entries that are not zero, as behind pruning, sizes follow no such law.
_FILLED = 0.25
# Rounds in which the share of rows that hold noise alone is estimated.
_ROUNDS = 3


def noise_probabilities(rows: Tensor) -> Tensor:
    """For each row, the probability that noise alone is as large as the row, `(V,)` in float64.

    Most rows are taken to hold nothing but noise of one size. Two sizes are tested, and the smaller
    probability counts twice: the sum of the absolute entries, and the energy in the directions
    which rows share, the singular vectors whose singular values exceed what noise reaches,

        s > sigma (sqrt(V) + sqrt(d)).

    The size of noise is taken to be a multiple of a chi-squared variable, as the absolute sum of
    Laplace noise is. Its scale and its degrees of freedom are fitted to the lower quartile and the
    median of all sizes. The fit is inexact, and the energy of Laplace noise has heavier tails. So
    both tests are calibrated on rows that are noise: their entries come from different rows, column
    by column. This only raises probabilities. The directions for one half of the rows are found in
    the other half, since a large row of noise would make a direction of itself. Where pruning left
    less than a quarter of all entries, every row is taken for noise.

    Args:
        rows: `(V, d)`.

    Example:
        >>> from seepage.core import rng
        >>> rows = rng(0).normal((1000, 16))
        >>> rows[7] += 3
        >>> found = noise_probabilities(rows)
        >>> int(found.argmin()), bool(found[7] < 1e-6), bool(found[8] < 1e-6)
        (7, True, False)
    """
    count, width = rows.shape
    ones = torch.ones(count, dtype=torch.float64, device=rows.device)
    if count < _FEWEST:
        return ones
    wide = rows.double()
    if float((wide != 0).double().mean()) < _FILLED:
        return ones
    size, drawn = wide.abs().sum(1), max(_MIXED, _TIMES * count)
    # The absolute sum of normal noise has a spread as if of 3.5 degrees of freedom for each entry.
    law = _fit_law(size, freedom=4 * width)
    if law is None:
        return ones
    tail = _find_tail(size, law)
    quiet = tail > _QUIET
    sums = torch.cat([part.abs().sum(1) for part in _mix_entries(wide[quiet], drawn)])
    along = torch.ones_like(tail)
    for half in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - half.start, None, 2)
        shared = _find_directions(wide[other], quiet[other])
        along[half] = _test_energy(wide[half], shared, wide[quiet], drawn)
    tested = [_calibrate(tail, _find_tail(sums, law))]
    if bool((along < 1).any()):
        tested.append(along)
    lowest: Tensor = torch.stack(tested).amin(0)
    return (len(tested) * lowest).clamp(max=1.0)


def _find_directions(rows: Tensor, quiet: Tensor) -> Tensor:
    """Directions in which rows have more energy than noise has, `(d, k)`."""
    count, width = rows.shape
    values, vectors = principal_directions(rows)
    # Laplace noise has a median below its mean, so the median would take noise for directions.
    noise = float(rows[quiet].square().mean())
    shared: Tensor = vectors[:, values > _EDGE * noise * (math.sqrt(count) + math.sqrt(width)) ** 2]
    return shared


def _test_energy(rows: Tensor, shared: Tensor, quiet: Tensor, drawn: int) -> Tensor:
    """The probability of the energy in directions that other rows share, `(V,)`."""
    along = (rows @ shared).square().sum(1)
    law = _fit_law(along, freedom=shared.shape[1]) if 0 < shared.shape[1] < len(shared) else None
    if law is None:
        return torch.ones_like(along)
    noise = [(part @ shared).square().sum(1) for part in _mix_entries(quiet, drawn)]
    return _calibrate(_find_tail(along, law), _find_tail(torch.cat(noise), law))


def _mix_entries(rows: Tensor, number: int) -> Iterator[Tensor]:
    """Draw rows with an entry of any row in each column: noise alone, as the columns have it."""
    count, width = rows.shape
    generator = torch.Generator().manual_seed(0)
    for start in range(0, number, held := max(1, _HELD // width)):
        shape = (min(held, number - start), width)
        yield rows.gather(0, torch.randint(count, shape, generator=generator).to(rows.device))


def _calibrate(tail: Tensor, noise: Tensor) -> Tensor:
    """Raise probabilities so that noise has at most the rate which it claims.

    -log p = a (-log tail)^c,   a and c so that shares r and 10 r of noise come out as such
    """
    claims, rates = (
        [-math.log(max(share, sys.float_info.min)) for share in shares]
        for shares in zip(
            *((float(noise.kthvalue(n).values), n / len(noise)) for n in (_ABOVE, 10 * _ABOVE)),
            strict=True,
        )
    )
    slope = 1.0
    if claims[0] > claims[1] > 0:
        slope = min(1.0, math.log(rates[0] / rates[1]) / math.log(claims[0] / claims[1]))
    surprise = -tail.clamp(min=sys.float_info.min).log()
    return torch.maximum(tail, (-rates[0] * (surprise / claims[0]) ** slope).exp())


# Half the degrees of freedom of a chi-squared law, and its scale.
_Law = tuple[float, float]


def _fit_law(sizes: Tensor, *, freedom: int) -> _Law | None:
    """A chi-squared law fitted to the smaller sizes; None if a quarter of them is zero.

    Args:
        sizes: `(V,)`.
        freedom: The most degrees of freedom that noise can have.
    """
    from scipy.special import gammaincinv

    noisy = 1.0
    ordered = sizes.sort().values
    for _ in range(_ROUNDS):
        # Of all rows, this share lies below the quantile of those with noise alone.
        low, middle = (float(ordered.quantile(level * noisy)) for level in (_LOW, _MIDDLE))
        if low <= 0:
            return None
        half = _fit_freedom(low / middle, freedom) / 2
        law = (half, middle / (2 * float(gammaincinv(half, _MIDDLE))))
        noisy = float((_find_tail(sizes, law) > 0.5).double().mean() / 0.5)
        noisy = min(1.0, max(0.5, noisy))
    return law


def _find_tail(sizes: Tensor, law: _Law) -> Tensor:
    """How likely it is under a law that a size is exceeded."""
    from scipy.special import gammaincc

    half, scale = law
    return torch.from_numpy(gammaincc(half, (sizes / (2 * scale)).cpu().numpy())).to(sizes)


def _fit_freedom(ratio: float, most: int) -> float:
    """Degrees of freedom at which the lower quartile is this share of the median, by bisection.

    Example:
        >>> round(_fit_freedom(0.4549 / 0.4549, 4))
        4
    """
    from scipy.special import gammaincinv

    low, high = 1e-2, float(most)
    for _ in range(60):
        middle = math.sqrt(low * high)
        found = float(gammaincinv(middle / 2, _LOW)) / float(gammaincinv(middle / 2, _MIDDLE))
        low, high = (middle, high) if found < ratio else (low, middle)
    return math.sqrt(low * high)
