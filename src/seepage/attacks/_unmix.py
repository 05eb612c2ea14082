"""Solve for private inputs, given mixtures of them, even if signs of the mixtures are lost."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks._lost_signs import agree_with_neighbours, choose_patterns, is_photograph
from seepage.core import Mixing, Rng
from seepage.core.errors import InvalidValue, NotApplicable

# Most encodings of one round whose 2^(E-1) sign patterns are all tried.
MOST_SIGNS = 7
RESTARTS = 20


def unmix(
    encodings: Tensor,
    mixing: Mixing,
    *,
    rng: Rng,
    restarts: int = RESTARTS,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Return the private inputs whose mixtures come nearest to these encodings.

        min_x ||W x - e||^2,   or   min_x || |W (x - c)| - |e - c| ||^2   if signs were flipped

    Without flipped signs this is linear least squares. With them, magnitudes determine every entry
    only up to one mirroring at c for all inputs together. Neighbouring entries are mirrored to
    agree, and the whole so that it looks like photographs rather than their negatives. Encodings
    of several rounds determine the rest: `torch.cat` them, and the coefficients. One round leaves
    up to 2^(B-1) solutions for every entry; if inputs are smooth, their range and their neighbours
    leave one. That needs exact encodings, since errors grow with the condition of W.

    With twice as many encodings as inputs or more, encodings may be inexact: the error of each is
    estimated, so that a round that failed hardly counts, and if signs were flipped inputs are
    assumed to be smooth, the more so the larger the errors (`_fit_inexact`).

    Args:
        encodings: `(E, ...)`, in natural units.
        mixing: How they were made, with coefficients `(E, B)`.
        rng: Where the searches for signs start.
        restarts: Number of searches for signs; the best is kept entry by entry.
        bounds: The range of inputs; it selects among the solutions.

    Returns:
        Inputs `(B, ...)`, in natural units.

    Example:
        >>> from seepage.core import rng
        >>> halves = Mixing(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        >>> solved = unmix(torch.tensor([[0.5], [0.75]]), halves, rng=rng(0))
        >>> torch.allclose(solved, torch.tensor([[0.0], [1.0]]), atol=1e-6)
        True

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating); Carlini et al., 2021
        (carlini2021private) for the magnitudes
    """
    weights = mixing.coefficients.double()
    if len(weights) != len(encodings):
        raise InvalidValue(
            f"expected one row of coefficients per encoding, got {len(weights)} rows and "
            f"{len(encodings)} encodings"
        )
    flat = encodings.flatten(1).double()
    if mixing.flipped_about is None:
        solved = _solve_robustly(weights, flat)
        return solved.reshape(-1, *encodings.shape[1:]).to(encodings)
    centre, (seen, wanted) = mixing.flipped_about, weights.shape
    if not can_unmix(mixing):
        raise NotApplicable(
            f"expected more encodings than inputs, since their signs are lost, or as many of "
            f"{MOST_SIGNS} at most, got {seen} for {wanted}; add those of other rounds"
        )
    magnitudes = (flat - centre).abs()
    shaped = magnitudes.reshape(encodings.shape)
    low, high = (bound - centre for bound in bounds)
    if seen > wanted:
        centred = _retrieve_signs(magnitudes, weights, restarts=restarts, rng=rng)
    else:
        centred = choose_patterns(shaped, weights, low=low, high=high)
    agreed = agree_with_neighbours(centred.reshape(-1, *encodings.shape[1:]))
    if seen >= 2 * wanted:
        agreed = _fit_inexact(agreed, shaped, weights, low=low, high=high)
    return (centre + agreed).to(encodings)


def can_unmix(mixing: Mixing) -> bool:
    """Whether there are more encodings than inputs, or as many and few enough to try all signs."""
    seen, wanted = mixing.coefficients.shape
    return seen > wanted or seen == wanted <= MOST_SIGNS


# How often encodings are weighed anew by what the solution leaves of them.
REWEIGHTED = 5


def _solve_robustly(coefficients: Tensor, encodings: Tensor) -> Tensor:
    """Solve W x = e by least squares, counting encodings that do not fit the others less.

        w_e = 1 / max(r_e^2, median r^2),   r_e what x leaves of encoding e

    Example:
        >>> weights = torch.tensor([[0.6, 0.4], [0.3, 0.7]] * 4).double()
        >>> encodings = weights @ torch.tensor([[0.2, 0.4], [0.8, 0.6]]).double()
        >>> encodings[0] = 0.0
        >>> [round(value, 2) for value in _solve_robustly(weights, encodings).flatten().tolist()]
        [0.2, 0.4, 0.8, 0.6]
    """
    solved: Tensor = torch.linalg.pinv(coefficients) @ encodings
    if len(coefficients) < 2 * coefficients.shape[1]:
        return solved
    for _ in range(REWEIGHTED):
        left = (coefficients @ solved - encodings).square().mean(1)
        trust = (1 / left.clamp_min(float(left.median())).clamp_min(1e-12)).sqrt().unsqueeze(1)
        solved = torch.linalg.pinv(trust * coefficients) @ (trust * encodings)
    return solved


STEPS = 60
# Encodings with errors below this are exact: half a step of 8 bits, of a range of one.
EXACT = 0.5 / 255


def _retrieve_signs(magnitudes: Tensor, coefficients: Tensor, *, restarts: int, rng: Rng) -> Tensor:
    """Solve |W u| = a for every entry by itself, up to its sign: real phase retrieval.

        s = sign(W u),   u = W^+ (s * a),   until the signs no longer change

    Args:
        magnitudes: a, `(E, P)`.
        coefficients: W, `(E, B)`.
        restarts: Random starts; the smallest residual is kept, entry by entry. If most entries are
            solved exactly, the others get ten times as many.
        rng: Of the starts.

    Returns:
        u, `(B, P)`.

    References:
        Fienup, 1982 (fienup1982phase)
    """
    inverse = torch.linalg.pinv(coefficients)
    shape = (coefficients.shape[1], magnitudes.shape[1])
    best = torch.zeros(shape).to(magnitudes)
    lowest = torch.full(shape[1:], torch.inf).to(magnitudes)
    for restart in range(restarts):
        found = rng.fork(restart).normal(shape, like=magnitudes)
        for _ in range(STEPS):
            before = found
            found = inverse @ torch.where(coefficients @ found < 0, -magnitudes, magnitudes)
            if torch.equal(found, before):
                break
        unexplained = ((coefficients @ found).abs() - magnitudes).square().sum(0)
        best = torch.where(unexplained < lowest, found, best)
        lowest = torch.minimum(unexplained, lowest)
    missed = lowest > len(coefficients) * EXACT**2
    if 0 < int(missed.sum()) < len(missed) / 2 and restarts <= RESTARTS:
        again = rng.fork("again")
        best[:, missed] = _retrieve_signs(
            magnitudes[:, missed], coefficients, restarts=10 * RESTARTS, rng=again
        )
    return best


FITTED = 200
STEP = 0.03
# Mean absolute difference of neighbours that inputs are assumed to have, of a range of one.
ROUGHNESS = 0.15


def _fit_inexact(
    start: Tensor, magnitudes: Tensor, coefficients: Tensor, *, low: float, high: float
) -> Tensor:
    """Find the likeliest inputs if every encoding has normal errors of its own size.

        min_u  sum_e [ (a_e^2 + m_e^2) / 2 s_e^2 - log cosh(a_e m_e / s_e^2) + log s_e ]
               + TV(u) / b,   m = W u,   low <= u <= high

    A magnitude of an inexact encoding is too large on average where the true one is small, so least
    squares on magnitudes would prefer wrong signs. The likelihood of a folded normal variable does
    not; its gradient has the expected sign tanh(a m / s^2) in place of the sign. The total
    variation decides what the encodings leave open. The search starts from the given inputs, which
    were solved entry by entry, and from `_lift_products`; the likelier end is kept.

    Args:
        start: u, `(B, ...)`.
        magnitudes: a, `(E, ...)`.
        coefficients: W, `(E, B)`.
        low: The least an entry of u can be.
        high: The most.

    References:
        Leone et al., 1961 (leone1961folded) for the folded normal distribution
    """
    mixed = torch.einsum("eb,b...->e...", coefficients, start)
    if float((mixed.abs() - magnitudes).abs().median()) < EXACT:
        return start
    starts = [start]
    seen, wanted = coefficients.shape
    if seen > wanted * (wanted + 1) // 2:
        starts.append(agree_with_neighbours(_lift_products(magnitudes, coefficients)))
    found = [
        _climb_likelihood(
            one.clamp(low, high).float(),
            magnitudes.float(),
            coefficients.float(),
            low=low,
            high=high,
        )
        for one in starts
    ]
    fitted = min(found, key=lambda pair: pair[1])[0]
    return fitted if is_photograph(fitted) else -fitted


def _climb_likelihood(
    inputs: Tensor, magnitudes: Tensor, coefficients: Tensor, *, low: float, high: float
) -> tuple[Tensor, float]:
    """Descend the objective of `_fit_inexact` by Adam; return where it ends, and its value."""
    seen, wanted = coefficients.shape
    # Each input that is fitted takes a part of the errors away.
    freedom = seen / (seen - wanted)
    first, second = torch.zeros_like(inputs), torch.zeros_like(inputs)
    expected = magnitudes * torch.einsum("eb,b...->e...", coefficients, inputs).sign()
    for step in range(FITTED + 1):
        mixed = torch.einsum("eb,b...->e...", coefficients, inputs)
        left = magnitudes.square() - 2 * expected * mixed + mixed.square()
        each = freedom * left.flatten(1).mean(1)
        # No encoding is trusted far more than most: one that is fitted closely may be so by chance.
        variance = each.clamp_min(float(each.median()) / 4).clamp_min(EXACT**2)
        variance = variance.reshape(-1, *[1] * (inputs.ndim - 1))
        cosine = magnitudes * mixed / variance
        expected = magnitudes * cosine.tanh()
        if step == FITTED:
            break
        slope = torch.einsum("eb,e...->b...", coefficients, (mixed - expected) / variance)
        for axis in range(2, inputs.ndim):
            edge = torch.zeros_like(inputs.narrow(axis, 0, 1))
            signs = torch.cat([edge, inputs.diff(dim=axis).sign(), edge], dim=axis)
            slope = slope - signs.diff(dim=axis) / ROUGHNESS
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope.square()
        scale = (second / (1 - 0.99 ** (step + 1))).sqrt().clamp_min(1e-12)
        towards = first / (1 - 0.9 ** (step + 1)) / scale
        inputs = (inputs - STEP * (1 - step / FITTED) * towards).clamp(low, high)
    log_cosh = cosine.abs() + torch.log1p(torch.exp(-2 * cosine.abs()))
    likelihood = (magnitudes.square() + mixed.square()) / (2 * variance) - log_cosh
    rough = sum(float(inputs.diff(dim=axis).abs().sum()) for axis in range(2, inputs.ndim))
    value = float((likelihood + variance.log() / 2).sum()) + rough / ROUGHNESS
    return inputs, value


def _lift_products(magnitudes: Tensor, coefficients: Tensor) -> Tensor:
    """Solve for the products of inputs, which have no signs, and take them apart.

        a_e^2 = w_e^T U w_e + s^2,   U = u u^T

    is linear in U, so that errors average over encodings, and over neighbours, whose products are
    alike. Then u is the leading eigenvector of U, up to its sign. This needs more encodings than U
    has entries that differ.

    Args:
        magnitudes: a, `(E, ...)`.
        coefficients: W, `(E, B)`.

    Returns:
        u, `(B, ...)`, each entry up to one sign for all inputs.

    Example:
        >>> inputs = torch.tensor([[0.4, 0.4, 0.4], [-0.2, -0.2, -0.2]]).double()
        >>> mixing = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]]).double()
        >>> found = _lift_products((mixing @ inputs).abs(), mixing)
        >>> torch.allclose(found * found[0].sign(), inputs)
        True

    References:
        Candes et al., 2013 (candes2013phaselift)
    """
    size = coefficients.shape[1]
    rows, columns = torch.triu_indices(size, size)
    twice = torch.where(rows == columns, 1.0, 2.0).to(coefficients)
    products = coefficients[:, rows] * coefficients[:, columns] * twice
    design = torch.cat([products, torch.ones_like(products[:, :1])], dim=1)
    solved = torch.einsum("ke,e...->k...", torch.linalg.pinv(design), magnitudes.square())[:-1]
    for axis in range(2, solved.ndim):
        reach = solved.shape[axis]
        ends = solved.narrow(axis, 0, 1), solved, solved.narrow(axis, reach - 1, 1)
        padded = torch.cat(ends, dim=axis)
        solved = torch.stack([padded.narrow(axis, shift, reach) for shift in range(3)]).mean(0)
    entries = solved.movedim(0, -1)
    lifted = entries.new_zeros(*entries.shape[:-1], size, size)
    lifted[..., rows, columns] = lifted[..., columns, rows] = entries
    values, vectors = torch.linalg.eigh(lifted)
    leading = vectors[..., -1] * values[..., -1:].clamp_min(0).sqrt()
    inputs: Tensor = leading.movedim(-1, 0)
    return inputs
