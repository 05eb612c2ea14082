"""The Lanczos process: Krylov spaces of a symmetric matrix that is only known by its products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from seepage.core._progress import report

# A new direction shorter than this share of the largest entry of T is all rounding.
_EXHAUSTED = 1e-12
# Convergence is checked ten times over the steps.
_CHECKS = 10


@dataclass(frozen=True, eq=False)
class Krylov:
    """Orthonormal bases V of b, A b, A^2 b, ... for several b, and T = V^T A V.

    Args:
        basis: V for each of k starts b, `(k, j, n)`.
        diagonal: The diagonal of T, `(k, j)`.
        beside: The entries next to the diagonal, `(k, j)`; the last one leads out of the space. It
            is zero if the space cannot grow, and V is zero from there on.
    """

    basis: Tensor
    diagonal: Tensor
    beside: Tensor

    @property
    def steps(self) -> int:
        """Products taken with each start."""
        return self.diagonal.shape[1]

    @property
    def ended(self) -> bool:
        """Whether no space can grow."""
        return bool((self.beside[:, -1] == 0).all())

    def matrices(self) -> Tensor:
        """T `(k, j, j)`; beyond a space that cannot grow, the first diagonal entry repeats."""
        off = self.beside[:, :-1]
        outside = torch.cat([torch.ones_like(self.diagonal[:, :1]), off], 1) == 0
        main = torch.where(outside.cumsum(1) > 0, self.diagonal[:, :1], self.diagonal)
        return torch.diag_embed(main) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)


def krylov(products: Callable[[Tensor], Tensor], starts: Tensor, *, steps: int) -> Iterator[Krylov]:
    """Grow the spaces by the Lanczos process, one dimension at a time, until none can grow.

    Args:
        products: A d for every row d of `(k, n)`.
        starts: The rows b, `(k, n)`.
        steps: The largest dimension; at most n.

    Example:
        >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
        >>> start = torch.ones(1, 3, dtype=torch.float64)
        >>> *_, whole = krylov(lambda rows: rows @ matrix, start, steps=3)
        >>> torch.linalg.eigvalsh(whole.matrices()).round(decimals=6)
        tensor([[1., 2., 4.]], dtype=torch.float64)

    References:
        Golub and Meurant, 2010, Ch. 4 (golub2010matrices)
    """
    count, unknowns = starts.shape
    steps = min(steps, unknowns)
    basis = starts.new_zeros(count, steps, unknowns)
    diagonal, beside = starts.new_zeros(2, count, steps)
    image = starts
    for taken in range(1, steps + 1):
        lengths = image.norm(dim=1, keepdim=True)
        # A space that cannot grow has zeros from here on.
        basis[:, taken - 1] = torch.where(lengths == 0, 0.0, image / lengths)
        known, newest = basis[:, :taken], basis[:, taken - 1]
        image = products(newest)
        diagonal[:, taken - 1] = (image * newest).sum(1)
        # Orthogonalise twice against the whole basis, since rounding brings directions back.
        for _ in range(2):
            overlap = torch.einsum("kjn,kn->kj", known, image)
            image = image - torch.einsum("kjn,kj->kn", known, overlap)
        spent = image.norm(dim=1) <= _EXHAUSTED * diagonal.amax(1)
        image = torch.where(spent[:, None], 0.0, image)
        beside[:, taken - 1] = image.norm(dim=1)
        space = Krylov(known, diagonal[:, :taken], beside[:, :taken])
        yield space
        if space.ended:
            return


@dataclass(frozen=True, eq=False)
class _Solutions:
    """A^-1 b in Krylov spaces.

    Args:
        solutions: One for each start, `(k, n)`.
        least: The smallest Ritz value, an upper bound on the smallest eigenvalue.
        most: The largest Ritz value.
        steps: Products taken with each start.
        settled: Whether the tolerance was reached.
    """

    solutions: Tensor
    least: float
    most: float
    steps: int
    settled: bool


def lanczos(
    products: Callable[[Tensor], Tensor], starts: Tensor, *, steps: int, tolerance: float
) -> _Solutions:
    """Solve A x = b for every row b side by side, by the Lanczos process.

        x = |b| V T^-1 e_1,   V^T A V = T,   V a basis of b, A b, A^2 b, ...

    For a positive definite A the form b^T x grows towards b^T A^-1 b from below.

    Args:
        products: A d for every row d of `(k, n)`.
        starts: The rows b, `(k, n)`.
        steps: The largest dimension of V; at most n.
        tolerance: Stop when the forms change relatively by less over a tenth of the steps.

    Example:
        >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
        >>> ones = torch.ones(1, 3, dtype=torch.float64)
        >>> found = lanczos(lambda rows: rows @ matrix, ones, steps=3, tolerance=1e-9)
        >>> found.solutions.round(decimals=6)
        tensor([[1.0000, 0.5000, 0.2500]], dtype=torch.float64)

    References:
        Golub and Meurant, 2010, Ch. 6 (golub2010matrices)
    """
    steps = min(steps, starts.shape[1])
    form, settled = starts.new_zeros(len(starts)), False
    for space in krylov(products, starts, steps=steps):
        report(space.steps, steps, float(space.beside[:, -1].max()))
        if space.steps == steps or space.steps % max(1, steps // _CHECKS) == 0 or space.ended:
            before, form = form, _weights(space)[:, 0]
            settled = bool((form - before <= tolerance * form).all()) or space.ended
            if settled:
                break
    settled = settled or space.steps == starts.shape[1]
    weights = _weights(space) * starts.norm(dim=1, keepdim=True)
    solutions = torch.einsum("kjn,kj->kn", space.basis, weights)
    ritz = torch.linalg.eigvalsh(space.matrices())
    return _Solutions(solutions, float(ritz.min()), float(ritz.max()), space.steps, settled)


def _weights(space: Krylov) -> Tensor:
    """T^-1 e_1 for each space, `(k, j)`."""
    matrices = space.matrices()
    first = torch.zeros_like(matrices[:, 0])
    first[:, 0] = 1.0
    return cast(Tensor, torch.linalg.solve(matrices, first))
