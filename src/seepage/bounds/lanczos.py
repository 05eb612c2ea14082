"""Solving with a symmetric matrix of which only products are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.progress import report

# Share of the largest Ritz value below which a new direction is rounding and nothing new.
EXHAUSTED = 1e-13
# After which share of the steps it is asked whether the solutions settled.
ASKED = 10


@dataclass(frozen=True, eq=False)
class Krylov:
    """Solutions in Krylov spaces.

    Args:
        solutions: `(k, n)`, one for each start.
        least: The smallest Ritz value of all, an upper bound on the smallest eigenvalue.
        most: The largest.
        steps: Products taken with each start.
        settled: Whether they were enough for the tolerance.
    """

    solutions: Tensor
    least: float
    most: float
    steps: int
    settled: bool


def lanczos(
    products: Callable[[Tensor], Tensor], starts: Tensor, *, steps: int, tolerance: float
) -> Krylov:
    """Solve A x = b for every row b by the Lanczos process, all of them side by side.

        x = |b| V T^-1 e_1,   V^T A V = T,   V a basis of b, A b, A^2 b, ...

    For a positive definite A the form b^T x grows towards b^T A^-1 b and never passes it.

    Args:
        products: A d for every row d of `(k, n)`.
        starts: The rows b, `(k, n)`.
        steps: Dimension at which V stops growing; no more than n.
        tolerance: Relative change of the forms over a tenth of the steps that ends it before.

    Example:
        >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
        >>> lanczos(
        ...     lambda rows: rows @ matrix,
        ...     torch.ones(1, 3, dtype=torch.float64),
        ...     steps=3,
        ...     tolerance=1e-9,
        ... ).solutions.round(decimals=6)
        tensor([[1.0000, 0.5000, 0.2500]], dtype=torch.float64)

    References:
        Golub and Meurant, 2010, Ch. 6 (golub2010matrices)
    """
    steps = min(steps, starts.shape[1])
    lengths = starts.norm(dim=1)
    basis = starts.new_zeros(len(starts), steps, starts.shape[1])
    basis[:, 0] = starts / lengths[:, None]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    form, settled = torch.zeros_like(lengths), False
    for taken in range(1, steps + 1):
        known = basis[:, :taken]
        image = products(basis[:, taken - 1])
        diagonal.append((image * basis[:, taken - 1]).sum(1))
        # Against the whole basis, and twice: rounding would let found directions come back.
        for _ in range(2):
            overlap = torch.einsum("kjn,kn->kj", known, image)
            image = image - torch.einsum("kjn,kj->kn", known, overlap)
        norms = image.norm(dim=1)
        ended = norms <= EXHAUSTED * torch.stack(diagonal).amax(0)
        report(taken, steps, float(norms.max()))
        if taken in (steps, starts.shape[1]) or taken % max(1, steps // ASKED) == 0 or ended.all():
            before, form = form, _forms(diagonal, beside)
            settled = bool((form - before <= tolerance * form).all() or ended.all())
            if settled:
                break
        if taken < steps:
            beside.append(torch.where(ended, 0.0, norms))
            basis[:, taken] = torch.where(ended[:, None], 0.0, image / norms[:, None])
    settled = settled or taken == starts.shape[1]
    return _solved(basis[:, :taken], diagonal, beside, lengths, settled=settled)


def _matrices(diagonal: list[Tensor], beside: list[Tensor]) -> Tensor:
    """The tridiagonal matrices T `(k, j, j)`; a space that cannot grow repeats its first entry."""
    main = torch.stack(diagonal, 1)
    off = torch.stack([*beside, torch.zeros_like(main[:, 0])], 1)[:, : main.shape[1] - 1]
    ended = torch.cat([torch.zeros_like(main[:, :1]), off], 1) == 0
    ended[:, 0] = False
    main = torch.where(ended.cumsum(1) > 0, main[:, :1], main)
    return torch.diag_embed(main) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)


def _forms(diagonal: list[Tensor], beside: list[Tensor]) -> Tensor:
    matrices = _matrices(diagonal, beside)
    solved: Tensor = torch.linalg.solve(matrices, _first(matrices))
    return solved[:, 0]


def _solved(
    basis: Tensor,
    diagonal: list[Tensor],
    beside: list[Tensor],
    lengths: Tensor,
    *,
    settled: bool,
) -> Krylov:
    matrices = _matrices(diagonal, beside)
    weights = torch.linalg.solve(matrices, _first(matrices)) * lengths[:, None]
    ritz = torch.linalg.eigvalsh(matrices)
    solutions = torch.einsum("kjn,kj->kn", basis, weights)
    return Krylov(solutions, float(ritz.min()), float(ritz.max()), len(diagonal), settled)


def _first(matrices: Tensor) -> Tensor:
    """The first unit vector for each matrix, `(k, j)`."""
    first = torch.zeros_like(matrices[:, 0])
    first[:, 0] = 1.0
    return first
