"""Spaces in which a symmetric matrix, of which only products are known, is a small one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Share of the largest entry of T below which a new direction is rounding and nothing new.
EXHAUSTED = 1e-12


@dataclass(frozen=True, eq=False)
class Krylov:
    """Orthonormal bases V of b, A b, A^2 b, ... side by side, and A in them: T = V^T A V.

    Args:
        basis: V for each of k starts b, `(k, j, n)`.
        diagonal: Of T, `(k, j)`.
        beside: The entries next to it, `(k, j)`; the last leads out of the space. Zero where
            nothing does, from where on V is zero too.
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
        """T `(k, j, j)`; one of a space that cannot grow repeats its first entry."""
        off = self.beside[:, :-1]
        outside = torch.cat([torch.ones_like(self.diagonal[:, :1]), off], 1) == 0
        main = torch.where(outside.cumsum(1) > 0, self.diagonal[:, :1], self.diagonal)
        return torch.diag_embed(main) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)


def krylov(products: Callable[[Tensor], Tensor], starts: Tensor, *, steps: int) -> Iterator[Krylov]:
    """Grow the spaces by the Lanczos process, a dimension at a time, until none can grow.

    Args:
        products: A d for every row d of `(k, n)`.
        starts: The rows b, `(k, n)`.
        steps: Dimension at which they stop growing; no more than n.

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
        # A direction that is nothing new was set to zero, and stays so.
        basis[:, taken - 1] = torch.where(lengths == 0, 0.0, image / lengths)
        known, newest = basis[:, :taken], basis[:, taken - 1]
        image = products(newest)
        diagonal[:, taken - 1] = (image * newest).sum(1)
        # Against the whole basis, and twice: rounding would let found directions come back.
        for _ in range(2):
            overlap = torch.einsum("kjn,kn->kj", known, image)
            image = image - torch.einsum("kjn,kj->kn", known, overlap)
        spent = image.norm(dim=1) <= EXHAUSTED * diagonal.amax(1)
        image = torch.where(spent[:, None], 0.0, image)
        beside[:, taken - 1] = image.norm(dim=1)
        space = Krylov(known, diagonal[:, :taken], beside[:, :taken])
        yield space
        if space.ended:
            return
