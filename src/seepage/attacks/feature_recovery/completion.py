"""What pruning or dropout took out of a gradient of low rank, filled in again."""

from __future__ import annotations

import torch
from torch import Tensor

_SWEEPS = 40
_STALLED = 0.99


def completed(matrix: Tensor, rank: int) -> tuple[Tensor, float]:
    """The matrix of this rank that agrees with all entries that are not zero, as far as found.

    Rows that are zero altogether come from neurons that are silent for everybody and stay so. For
    the others the two factors of the matrix are solved for in turn, from the entries that are seen;
    the strongest parts first, for the weakest are below what the missing entries of those hide.

    Args:
        matrix: dL/dW `(m, d)` with entries missing.
        rank: The number of people, at most m and d.

    Returns:
        The matrix, and the norm of what it leaves of the entries that are seen.

    Example:
        >>> whole = torch.outer(torch.arange(1.0, 9), torch.tensor([1.0, 2.0, 3.0])).double()
        >>> pruned = torch.where(whole > 1.5, whole, 0)
        >>> filled, left = completed(pruned, 1)
        >>> bool(torch.allclose(filled[1:], whole[1:]))
        True

    References:
        Jain et al., 2013 (jain2013low)
    """
    live = (matrix != 0).any(1)
    rows = matrix[live]
    seen = (rows != 0).to(rows)
    if bool(seen.all()):
        return matrix, 0.0
    left, basis, rest = rows[:, :0], rows.T[:, :0], rows
    while basis.shape[1] < rank:
        more = min(max(basis.shape[1], 1), rank - basis.shape[1])
        strongest = torch.linalg.eigh(rest.T @ rest).eigenvectors[:, -more:]
        basis = torch.linalg.qr(torch.cat([basis, strongest], dim=1)).Q
        left, basis = _alternated(seen, rows, basis)
        rest = rows - seen * (left @ basis.T)
    whole = matrix.clone()
    whole[live] = left @ basis.T
    return whole, float(rest.norm())


def _alternated(seen: Tensor, rows: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors, solved for in turn until that no longer helps."""
    left, before = _solved(seen, rows, basis), float("inf")
    for _ in range(_SWEEPS):
        basis = torch.linalg.qr(_solved(seen.T, rows.T, left)).Q
        left = _solved(seen, rows, basis)
        after = float((rows - seen * (left @ basis.T)).norm())
        if after > _STALLED * before:
            break
        before = after
    return left, basis


def _solved(seen: Tensor, rows: Tensor, basis: Tensor) -> Tensor:
    """For every row the combination of the basis `(d, B)` that fits what is seen of it best."""
    pairs = torch.einsum("da,db->dab", basis, basis).flatten(1)
    normal = (seen @ pairs).reshape(len(seen), *(basis.shape[1],) * 2)
    # A row of which less is seen than there are unknowns is given the smallest solution.
    ridge = 1e-12 * normal.diagonal(dim1=1, dim2=2).mean() * torch.eye(basis.shape[1]).to(normal)
    solved: Tensor = torch.linalg.solve_ex(normal + ridge, (rows @ basis)[..., None])[0]
    return torch.nan_to_num(solved[..., 0])
