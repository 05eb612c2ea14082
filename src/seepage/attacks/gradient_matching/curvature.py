"""What L-BFGS remembers of each row: its last displacements and changes of gradient."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# As in torch.optim.LBFGS: below it a pair says nothing about curvature that rounding would not.
_LEAST_CURVATURE = 1e-10


class Curvature(NamedTuple):
    """The pairs of every row, the oldest first; unused slots are zero and come before.

    Args:
        displacements: S, `(R, m, D)`.
        changes: Y, `(R, m, D)`.
        products: The upper triangle of S Y^T, `(R, m, m)`; the identity at unused slots.
        scale: (y . s) / (y . y) of the newest pair, `(R, 1)`; one where there is none.
    """

    displacements: Tensor
    changes: Tensor
    products: Tensor
    scale: Tensor

    @classmethod
    def empty(cls, points: Tensor, history: int) -> Curvature:
        """No pairs yet, for points `(R, D)`."""
        rows, size = points.shape
        pairs = points.new_zeros(rows, history, size)
        return cls(
            pairs, pairs.clone(), _identity(points, history).repeat(rows, 1, 1), pairs[:, 0, :1] + 1
        )

    @property
    def any(self) -> Tensor:
        """Which rows have a pair, `(R, 1)`."""
        return (self.displacements[:, -1] != 0).any(1, keepdim=True)

    def updated(self, displacement: Tensor, change: Tensor, wanted: Tensor) -> Curvature:
        """With one more pair in the rows `(R, 1)` that want it and have positive curvature."""
        product, square = dot(displacement, change), dot(change, change)
        taken = wanted & (product > _LEAST_CURVATURE)
        each = taken.unsqueeze(2)
        displacements = _appended(self.displacements, displacement)
        older = torch.nn.functional.pad(self.products[:, 1:, 1:], (0, 0, 0, 1))
        products = torch.cat([older, _inner(displacements, change).unsqueeze(2)], 2)
        return Curvature(
            torch.where(each, displacements, self.displacements),
            torch.where(each, _appended(self.changes, change), self.changes),
            torch.where(each, products, self.products),
            torch.where(taken, product / square, self.scale),
        )

    def forgotten(self, rows: Tensor) -> Curvature:
        """Without the pairs of these rows `(R, 1)`."""
        each = rows.unsqueeze(2)
        return Curvature(
            torch.where(each, 0, self.displacements),
            torch.where(each, 0, self.changes),
            torch.where(each, _identity(self.scale, self.products.shape[1]), self.products),
            torch.where(rows, 1, self.scale),
        )

    def direction(self, gradients: Tensor) -> Tensor:
        """Minus the inverse Hessian times the gradients.

        The two loops of the recursion are two triangular systems, solved at once:

            P a = S q,   r = scale (q - Y^T a),   P^T b = diag(P) a - Y r,   d = r + S^T b

        with q = -g and P = triu(S Y^T). A loop over the slots would launch hundreds of kernels.
        """
        # Doubles cost nothing at this size, and a card may not round them to TF32.
        products = self.products.double()
        down = -gradients
        inner = _inner(self.displacements, down).double().unsqueeze(2)
        first = torch.linalg.solve_triangular(products, inner, upper=True)
        scaled = self.scale * (down - _combined(self.changes, first))
        inner = products.diagonal(dim1=1, dim2=2).unsqueeze(2) * first
        inner = inner - _inner(self.changes, scaled).double().unsqueeze(2)
        second = torch.linalg.solve_triangular(products.mT, inner, upper=False)
        return scaled + _combined(self.displacements, second)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each row, `(R, 1)`; no matrix product, which a card may round to TF32."""
    return (a * b).sum(1, keepdim=True)


def _inner(pairs: Tensor, vectors: Tensor) -> Tensor:
    """Of every slot with the row's vector, `(R, m)`."""
    return (pairs * vectors.unsqueeze(1)).sum(2)


def _combined(pairs: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the slots of each row, `(R, D)`."""
    return (pairs * weights.to(pairs.dtype)).sum(1)


def _appended(pairs: Tensor, newest: Tensor) -> Tensor:
    return torch.cat([pairs[:, 1:], newest.unsqueeze(1)], 1)


def _identity(like: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
