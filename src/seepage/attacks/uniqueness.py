"""Can the input move without changing the update?"""

from __future__ import annotations

import math

import torch

from seepage.attacks.jacobian import Jacobian
from seepage.attacks.krylov import Krylov, krylov
from seepage.core import Rng

# The squared problem J^T J is computed to sixteen digits, so singular values below 1e-8 of the
# largest are rounding; a hundred times more is told from zero with a margin.
RESOLVED = 1e-6
# Unknowns up to which every direction is tried.
DENSE = 4_096
# Directions tried beyond it, and after how many of them it is asked whether they settle it.
STEPS, ASKED_EVERY = 600, 10
# Share of a Ritz value that its error may be before it counts as an eigenvalue.
SETTLED = 0.1


def smallest_singular_value(jacobian: Jacobian) -> float | None:
    """sigma_min(J), and zero where it is below 1e-6 sigma_max(J).

    It is positive exactly where every direction changes the function. Too few equations settle it
    at once. Up to 4096 unknowns the eigenvalues of J^T J are computed, beyond by the Lanczos
    process; None where that does not settle it.
    """
    if jacobian.equations < jacobian.unknowns:
        return 0.0
    if jacobian.unknowns <= DENSE:
        return dense_smallest(jacobian)
    return lanczos_smallest(jacobian)


def dense_smallest(jacobian: Jacobian) -> float | None:
    """The answer from all eigenvalues of J^T J."""
    gram = jacobian.gram()
    if not bool(gram.isfinite().all()):
        return None
    values = torch.linalg.eigvalsh(gram)
    return _resolve(float(values[0]), float(values[-1]))


def lanczos_smallest(jacobian: Jacobian, *, steps: int = STEPS) -> float | None:
    """The answer from the extreme Ritz values of J^T J in a growing Krylov space.

    A Ritz value never lies below the smallest eigenvalue, so one that is zero to rounding proves
    a direction which changes nothing. One that is not is believed once its error is a tenth of
    it; a random start misses the eigenvector with probability zero.

    Args:
        jacobian: Of which only products are taken.
        steps: Directions after which it stays unknown, None.
    """
    steps = min(steps, jacobian.unknowns)
    start = Rng(0).fork("lanczos").normal((1, jacobian.unknowns), like=jacobian.at)
    for space in krylov(jacobian.squared, start, steps=steps):
        if space.ended or space.steps % ASKED_EVERY == 0 or space.steps == steps:
            settled = _settled(space)
            if settled is not None:
                return settled
    return None


def _settled(space: Krylov) -> float | None:
    """What the Ritz values of the tridiagonal matrix say by now."""
    (matrix,) = space.matrices()
    if not bool(matrix.isfinite().all()):
        return None
    values, vectors = torch.linalg.eigh(matrix)
    smallest = _resolve(float(values[0]), float(values[-1]))
    error = float(space.beside[0, -1] * vectors[-1, 0].abs())
    return smallest if error <= SETTLED * smallest**2 or not smallest else None


def _resolve(least: float, most: float) -> float:
    """The root of the least eigenvalue, or zero if it is rounding beside the largest."""
    return math.sqrt(least) if least > RESOLVED**2 * most and most > 0 else 0.0
