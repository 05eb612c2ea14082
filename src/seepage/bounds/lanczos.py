"""Solving with a symmetric matrix of which only products are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from seepage.attacks.krylov import Krylov, krylov
from seepage.core.progress import report

# After which share of the steps it is asked whether the solutions settled.
ASKED = 10


@dataclass(frozen=True, eq=False)
class Solutions:
    """What A^-1 b is in Krylov spaces.

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
) -> Solutions:
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
    form, settled = starts.new_zeros(len(starts)), False
    for space in krylov(products, starts, steps=steps):
        report(space.steps, steps, float(space.beside[:, -1].max()))
        if space.steps == steps or space.steps % max(1, steps // ASKED) == 0 or space.ended:
            before, form = form, _weights(space)[:, 0]
            settled = bool((form - before <= tolerance * form).all()) or space.ended
            if settled:
                break
    settled = settled or space.steps == starts.shape[1]
    weights = _weights(space) * starts.norm(dim=1, keepdim=True)
    solutions = torch.einsum("kjn,kj->kn", space.basis, weights)
    ritz = torch.linalg.eigvalsh(space.matrices())
    return Solutions(solutions, float(ritz.min()), float(ritz.max()), space.steps, settled)


def _weights(space: Krylov) -> Tensor:
    """T^-1 e_1 for each space, `(k, j)`."""
    matrices = space.matrices()
    first = torch.zeros_like(matrices[:, 0])
    first[:, 0] = 1.0
    return cast(Tensor, torch.linalg.solve(matrices, first))
