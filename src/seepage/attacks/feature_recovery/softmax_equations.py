"""The equations of an ordinary classifier: its last gradient, and the softmax that made it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SoftmaxEquations:
    """a R^T U = dL/dA and a R^T 1 = dL/db, where R = softmax(U A^T + b) - Y.

    The rows of dL/dA span the features U as long as there are fewer people than classes, so with
    an orthonormal basis V of that span U = M V^T. The unknowns are M `(B, B)` and the scale a, one
    over the batch size unless something scaled the update; there are K - 1 independent equations
    for each of the B columns, and as many for the bias.

    Every column is divided by its length: the last ones, in which people of one label differ, are
    small, and would be taken for rounding.

    Args:
        weight: A V, `(K, B)`.
        offset: b, `(K,)`.
        labels: Y, `(B, K)`, in the order of the features.
        wanted: dL/dA V, `(K, B)`.
        bias: dL/db, `(K,)`; None where the update does not hold it.
    """

    weight: Tensor
    offset: Tensor
    labels: Tensor
    wanted: Tensor
    bias: Tensor | None

    def __call__(self, unknowns: Tensor) -> Tensor:
        """What is left of every equation; unknowns are M, row by row, and log a."""
        mixed, scale = self.split(unknowns)
        shares = self.chances(mixed) - self.labels
        left = [(scale * shares.T @ mixed - self.wanted) / self._lengths]
        if self.bias is not None:
            left.append((scale * shares.sum(0) - self.bias)[:, None] / self.bias.norm())
        return torch.cat([part.flatten() for part in left])

    def derivative(self, unknowns: Tensor) -> Tensor:
        """Of every equation by every unknown."""
        mixed, scale = self.split(unknowns)
        chances = self.chances(mixed)
        shares, people = chances - self.labels, len(mixed)
        # By M_ic of R_ik, (B, K, B).
        turned = chances[:, :, None] * (self.weight - (chances @ self.weight)[:, None, :])
        identity = torch.eye(people, dtype=mixed.dtype, device=mixed.device)
        products = torch.einsum("ikc,ia->kaic", turned, mixed)
        products += torch.einsum("ik,ac->kaic", shares, identity)
        by_mixed = scale * products / self._lengths[:, None, None]
        by_scale = scale * shares.T @ mixed / self._lengths
        rows = [torch.cat([by_mixed.flatten(2), by_scale[..., None]], 2).flatten(0, 1)]
        if self.bias is not None:
            sums = turned.transpose(0, 1).flatten(1), shares.sum(0)[:, None]
            rows.append(scale * torch.cat(sums, 1) / self.bias.norm())
        return torch.cat(rows)

    def start(self, logits: Tensor) -> Tensor:
        """The unknowns that explain most if these were the logits, `(B, K)`."""
        shares = torch.softmax(logits, 1) - self.labels
        scale = torch.as_tensor(1 / len(shares)).to(shares)
        if self.bias is not None:
            total = shares.sum(0)
            fitted = total @ self.bias / total.square().sum()
            scale = fitted if float(fitted) > 0 else scale
        mixed = torch.linalg.pinv(scale * shares.T) @ self.wanted
        return torch.cat([mixed.flatten(), scale.log()[None]])

    def split(self, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        """M and a."""
        people = self.labels.shape[0]
        return unknowns[:-1].reshape(people, people), unknowns[-1].exp()

    def chances(self, mixed: Tensor) -> Tensor:
        """softmax(M (A V)^T + b), `(B, K)`."""
        return torch.softmax(mixed @ self.weight.T + self.offset, 1)

    @cached_property
    def _lengths(self) -> Tensor:
        lengths: Tensor = self.wanted.norm(dim=0)
        return lengths
