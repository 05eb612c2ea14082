"""Simultaneous diagonalisation: the common parts of symmetric matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core import Rng

_DRAWS = 32
_SWEEPS = 50


def common_parts(matrices: Tensor, *, rng: Rng) -> Tensor:
    """Unit vectors u_i `(B, B)`, one per row, with M_n close to sum_i c_ni u_i u_i^T for all n.

    For two random combinations M, M' of the matrices, the u_i are eigenvectors of M M'^-1. Of
    several draws the one that explains most starts alternating least squares, which then uses
    all matrices at once.

    Args:
        matrices: `(N, B, B)`, symmetric: slices of a tensor, or one matrix per class.
        rng: For the combinations.

    Example:
        >>> parts = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
        >>> amounts = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
        >>> found = common_parts(torch.einsum("ni,ia,ib->nab", amounts, parts, parts), rng=Rng(0))
        >>> (found @ parts.T).abs().amax(0).round(decimals=6).tolist()
        [1.0, 1.0]

    References:
        Kuleshov et al., 2015, Algorithm 1 (kuleshov2015tensor)
    """
    size = matrices.shape[1]
    if size == 1:
        return torch.ones(1, 1, dtype=matrices.dtype, device=matrices.device)
    # A few small matrices and hundreds of short operations: no work for a card.
    found = _common_parts(matrices.cpu(), rng)
    return found.to(matrices.device)


def _common_parts(matrices: Tensor, rng: Rng) -> Tensor:
    draws = rng.normal((_DRAWS, 2, len(matrices)), like=matrices)
    pairs = torch.einsum("dpn,nab->dpab", draws, matrices)
    solved = torch.linalg.solve_ex(pairs[:, 1], pairs[:, 0])[0].mT
    vectors = torch.linalg.eig(torch.nan_to_num(solved)).eigenvectors.real.mT
    options = _unit(vectors)
    parts = options[_unexplained(matrices, options).argmin()]
    least = _unexplained(matrices, parts)
    for _ in range(_SWEEPS):
        better = _sweep(matrices, parts)
        after = _unexplained(matrices, better)
        if not after < least:
            break
        parts, least = better, after
    return parts


def _amounts(matrices: Tensor, parts: Tensor) -> Tensor:
    """The c `(..., B, N)` that fit parts `(..., B, B)` best."""
    gram = _gram(parts)
    ridge = 1e-12 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    solved: Tensor = torch.linalg.solve_ex(gram + ridge, _against(matrices, parts))[0]
    return solved


def _gram(parts: Tensor) -> Tensor:
    """Inner products of the u_i u_i^T, `(..., B, B)`."""
    return (parts @ parts.mT).square()


def _against(matrices: Tensor, parts: Tensor) -> Tensor:
    """u_i^T M_n u_i, `(..., B, N)`."""
    squares = (parts[..., :, None] * parts[..., None, :]).flatten(-2)
    return squares @ matrices.flatten(1).T


def _unexplained(matrices: Tensor, parts: Tensor) -> Tensor:
    """sum_n || M_n - sum_i c_ni u_i u_i^T ||^2, `(...)`, multiplied out; infinite if not finite."""
    amounts = _amounts(matrices, parts)
    crossed = _gram(parts) @ amounts - 2 * _against(matrices, parts)
    left = matrices.square().sum() + (amounts * crossed).sum((-2, -1))
    return torch.nan_to_num(left, nan=torch.inf)


def _sweep(matrices: Tensor, parts: Tensor) -> Tensor:
    """Alternating least squares: one side anew, given the other and the amounts."""
    amounts = _amounts(matrices, parts)
    normal = (amounts @ amounts.T) * (parts @ parts.T)
    ridge = 1e-12 * normal.diagonal().mean() * torch.eye(len(normal)).to(normal)
    weighted = (amounts @ matrices.flatten(1)).reshape(-1, *matrices.shape[1:])
    right = (weighted @ parts[..., None])[..., 0]
    return _unit(torch.linalg.solve_ex(normal + ridge, right)[0])


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return unit
