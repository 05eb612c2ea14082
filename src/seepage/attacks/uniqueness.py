"""Can the input move without changing the update?"""

from __future__ import annotations

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


def full_column_rank(jacobian: Jacobian) -> bool | None:
    """Whether every direction changes the function: sigma_min(J) > 1e-6 sigma_max(J).

    Too few equations settle it at once. Up to 4096 unknowns the eigenvalues of J^T J are computed,
    beyond by the Lanczos process; None where that does not settle it.
    """
    if jacobian.equations < jacobian.unknowns:
        return False
    if jacobian.unknowns <= DENSE:
        return dense_full_rank(jacobian)
    return lanczos_full_rank(jacobian)


def dense_full_rank(jacobian: Jacobian) -> bool | None:
    """The answer from all eigenvalues of J^T J."""
    gram = jacobian.gram()
    if not bool(gram.isfinite().all()):
        return None
    values = torch.linalg.eigvalsh(gram)
    return _separate(float(values[0]), float(values[-1]))


def lanczos_full_rank(jacobian: Jacobian, *, steps: int = STEPS) -> bool | None:
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


def _settled(space: Krylov) -> bool | None:
    """What the Ritz values of the tridiagonal matrix say by now."""
    (matrix,) = space.matrices()
    if not bool(matrix.isfinite().all()):
        return None
    values, vectors = torch.linalg.eigh(matrix)
    least, most = float(values[0]), float(values[-1])
    if not _separate(least, most):
        return False
    error = float(space.beside[0, -1] * vectors[-1, 0].abs())
    return True if error <= SETTLED * least else None


def _separate(least: float, most: float) -> bool:
    return most > 0 and least > RESOLVED**2 * most
