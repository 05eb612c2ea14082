"""Can the input move without changing the update?"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.jacobian import Jacobian
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
# Share of the largest Ritz value below which a new direction is rounding and nothing new.
EXHAUSTED = 1e-12


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
    basis = [_unit(Rng(0).fork("lanczos").normal((jacobian.unknowns,), like=jacobian.at))]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for step in range(1, steps + 1):
        (image,) = jacobian.squared(basis[-1][None])
        diagonal.append(image @ basis[-1])
        # Against the whole basis, and twice: rounding would let found directions come back.
        known = torch.stack(basis)
        for _ in range(2):
            image = image - known.T @ (known @ image)
        beside.append(image.norm())
        exhausted = float(beside[-1]) <= EXHAUSTED * float(max(diagonal))
        if exhausted or step % ASKED_EVERY == 0 or step == steps:
            settled = _settled(diagonal, beside)
            if settled is not None:
                return settled
        basis.append(_unit(image))
    return None


def _settled(diagonal: list[Tensor], beside: list[Tensor]) -> bool | None:
    """What the Ritz values of the tridiagonal matrix say by now."""
    matrix = torch.diag(torch.stack(diagonal))
    if len(diagonal) > 1:
        off = torch.diag(torch.stack(beside[:-1]), 1)
        matrix = matrix + off + off.T
    if not bool(matrix.isfinite().all()):
        return None
    values, vectors = torch.linalg.eigh(matrix)
    least, most = float(values[0]), float(values[-1])
    if not _separate(least, most):
        return False
    return True if float(beside[-1] * vectors[-1, 0].abs()) <= SETTLED * least else None


def _separate(least: float, most: float) -> bool:
    return most > 0 and least > RESOLVED**2 * most


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / vector.norm()
    return unit
