"""Which rows of a noisy matrix hold more than noise, at a stated rate of false alarms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Levels at which the noise is read off: low enough that rows with a signal hardly move them.
_LOW, _MIDDLE = 0.25, 0.5
# Singular values of noise exceed their limit by about this factor in small matrices.
_EDGE = 1.05
# With fewer rows, noise cannot be told from signals.
_FEWEST = 8
# Rows above this probability are taken for noise, their entries are mixed so many times, and mixed
# rows calibrate at this rate.
_QUIET, _MIXED, _RARE = 1e-3, 8, 1e-3
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
    median of all sizes. The energy has heavier tails than that if the noise has, as Laplace noise:
    it is calibrated on rows whose entries come from different rows, column by column.

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
    energy = wide.square().sum(1)
    if float(energy.median()) == 0:
        return ones
    # The absolute sum of normal noise has a spread as if of 3.5 degrees of freedom for each entry.
    tested = [_test_sizes(wide.abs().sum(1), freedom=4 * width)]
    values, vectors = torch.linalg.eigh(wide.T @ wide)
    quiet = wide[tested[0] > _QUIET]
    # Laplace noise has a median below its mean, so the median would take noise for directions.
    noise = float(quiet.square().mean())
    edge = _EDGE * noise * (math.sqrt(count) + math.sqrt(width)) ** 2
    shared = vectors[:, values > edge]
    if 0 < shared.shape[1] < width:
        along = [(part @ shared).square().sum(1) for part in (wide, _mix_entries(quiet))]
        tested.append(_calibrate(*(_test_sizes(size, freedom=shared.shape[1]) for size in along)))
    lowest: Tensor = torch.stack(tested).amin(0)
    return (len(tested) * lowest).clamp(max=1.0)


def _mix_entries(rows: Tensor) -> Tensor:
    """Rows with an entry of another row in each column: noise alone, as the columns have it."""
    count, width = rows.shape
    at = torch.arange(count, device=rows.device)[:, None]
    steps = torch.arange(width, device=rows.device)
    return torch.cat([rows[(at + steps * by) % count, steps] for by in range(1, _MIXED + 1)])


def _calibrate(tail: Tensor, noise: Tensor) -> Tensor:
    """Raise probabilities to the power that gives noise the rate `_RARE` which it claims."""
    claimed = float(noise.sort().values[int(_RARE * len(noise))])
    if not 0 < claimed < _RARE:
        return tail
    return tail ** (math.log(_RARE) / math.log(claimed))


def _test_sizes(sizes: Tensor, *, freedom: int) -> Tensor:
    """Upper tail probabilities under a chi-squared law fitted to the smaller sizes.

    Args:
        sizes: `(V,)`.
        freedom: The most degrees of freedom that noise can have.
    """
    from scipy.special import gammaincc, gammaincinv

    tail, noisy = torch.ones_like(sizes), 1.0
    ordered = sizes.sort().values
    for _ in range(_ROUNDS):
        # Of all rows, this share lies below the quantile of those with noise alone.
        low, middle = (float(ordered.quantile(level * noisy)) for level in (_LOW, _MIDDLE))
        if low <= 0:
            return torch.ones_like(sizes)
        half = _fit_freedom(low / middle, freedom) / 2
        scale = middle / (2 * float(gammaincinv(half, _MIDDLE)))
        values = gammaincc(half, (sizes / (2 * scale)).cpu().numpy())
        tail = torch.from_numpy(values).to(sizes)
        noisy = float((tail > 0.5).double().mean() / 0.5)
        noisy = min(1.0, max(0.5, noisy))
    return tail


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
