"""The space that the features span, read off the gradient of the layer that reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.numerics._row_span import principal_directions
from seepage.probing._heads import TwoLayerHead

_SWEEPS = 40
_STALLED = 0.99
# Singular values of rounding stay within this many times their median, even if entries, and their
# rounding with them, differ in size.
_ABOVE_NOISE = 16.0
# Rounding to single precision, 6e-8 of every entry, adds up to at most this share of the largest.
_SINGLE = 1e-7
# If the next singular value is larger than this, the directions in a span are not reliable.
_CLEAN = 1e-2


def _complete_matrix(matrix: Tensor, rank: int) -> tuple[Tensor, float]:
    """Fill in the zeros of a matrix of low rank; also return the norm of the error elsewhere.

    Rows of zeros belong to neurons that are silent for all examples and stay zero. For the other
    rows, the two factors of the matrix are solved for in turn from the entries that are seen. The
    strongest parts come first: missing entries of these hide the weakest.

    Args:
        matrix: dL/dW `(m, d)` with entries missing.
        rank: The number of examples, at most m and d.

    Example:
        >>> whole = torch.outer(torch.arange(1.0, 9), torch.tensor([1.0, 2.0, 3.0])).double()
        >>> pruned = torch.where(whole > 1.5, whole, 0)
        >>> filled, left = _complete_matrix(pruned, 1)
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
        strongest = principal_directions(rest)[1][:, -more:]
        basis = torch.linalg.qr(torch.cat([basis, strongest], dim=1)).Q
        left, before = _solve_rows(seen, rows, basis), float("inf")
        for _ in range(_SWEEPS):
            basis = torch.linalg.qr(_solve_rows(seen.T, rows.T, left)).Q
            left = _solve_rows(seen, rows, basis)
            rest = rows - seen * (left @ basis.T)
            after = float(rest.norm())
            if after > _STALLED * before:
                break
            before = after
    whole = matrix.clone()
    whole[live] = left @ basis.T
    return whole, float(rest.norm())


def _solve_rows(seen: Tensor, rows: Tensor, basis: Tensor) -> Tensor:
    """For every row, the combination of the basis `(d, B)` that fits its seen entries best."""
    pairs = torch.einsum("da,db->dab", basis, basis).flatten(1)
    normal = (seen @ pairs).reshape(len(seen), *(basis.shape[1],) * 2)
    # The ridge gives a row with fewer seen entries than unknowns the smallest solution.
    ridge = 1e-12 * normal.diagonal(dim1=1, dim2=2).mean() * torch.eye(basis.shape[1]).to(normal)
    solved: Tensor = torch.linalg.solve_ex(normal + ridge, (rows @ basis)[..., None])[0]
    return torch.nan_to_num(solved[..., 0])


@dataclass(frozen=True, eq=False)
class FeatureSpan:
    """dL/dW = left @ mixtures, where every row of the mixtures is a combination of features.

    Args:
        left: `(m, B)`, orthonormal columns.
        mixtures: `(B, d)`, orthogonal rows.
        noise: The next singular value, or the error of filling in, relative to the last one used.
        filled: Whether missing entries of the gradient were filled in.
    """

    left: Tensor
    mixtures: Tensor
    noise: float
    filled: bool = False

    @property
    def batch_size(self) -> int:
        """The number of features B."""
        return len(self.mixtures)

    @property
    def clean(self) -> bool:
        """Whether the features lie in the span, up to rounding."""
        return self.noise < _CLEAN

    @property
    def basis(self) -> Tensor:
        """Orthonormal columns `(d, B)`."""
        units: Tensor = self.mixtures / self.mixtures.norm(dim=1, keepdim=True)
        return units.T


def feature_span(head: TwoLayerHead, batch_size: int | None) -> FeatureSpan | None:
    """Find the span of the features; if the batch size is unknown, it is the rank.

    Returns:
        None if the gradient of the first layer is not in the update, or is zero.

    Raises:
        MissingKnowledge: The batch size is unknown and noise hides the rank.
        NotApplicable: The rank is smaller than the batch size.

    References:
        Huang et al., 2021, Lemma B.1 (huang2021evaluating)
    """
    if head.first is None or not bool(head.first.any()):
        if batch_size is None:
            raise MissingKnowledge("batch size", needed_by="feature recovery")
        return None
    if batch_size is not None and batch_size > min(head.weight.shape):
        raise NotApplicable(
            f"{batch_size} features through a layer of {len(head.weight)} neurons that read "
            f"{head.weight.shape[1]} numbers cannot be told apart; at least {batch_size} of both "
            "are needed"
        )
    whole, rest = head.first, 0.0
    values, right = _singular(whole)
    rank, noisy = _numerical_rank(values)
    # A gradient that has a rank is complete; its zeros are not to be filled in.
    if batch_size is not None and (noisy or rank > batch_size) and _above(values) > batch_size:
        whole, rest = _complete_matrix(head.first, batch_size)
        if whole is not head.first:
            values, right = _singular(whole)
            rank, noisy = _numerical_rank(values)
    if batch_size is None and torch.equal(head.first.float().double(), head.first):
        rank = min(rank, _above(values))
    if batch_size is None and noisy:
        raise MissingKnowledge(
            "batch size", needed_by="feature recovery from an update with noise or pruning"
        )
    if batch_size is not None and not noisy and rank < batch_size:
        raise NotApplicable(
            f"the gradient of {head.layer!r} has rank {rank} for {batch_size} examples: some "
            "features are equal, or the network is so sure of some examples that their gradient is "
            "lost in rounding; withhold the batch size to recover the others"
        )
    count = rank if batch_size is None else batch_size
    after = float(values[count]) if count < len(values) else 0.0
    noise = max(after, rest) / float(values[count - 1].clamp_min(1e-300))
    values, right = values[:count, None], right[:count]
    left, signs = torch.linalg.qr(whole @ (right / values.clamp_min(1e-300)).T)
    filled = whole is not head.first
    return FeatureSpan(left * signs.diagonal().sign(), values * right, noise, filled)


def _singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and right vectors (rows) of a tall matrix, from its triangular factor.

    The left vectors are not needed and not computed. The CPU is much faster than a GPU at
    decomposing the small factor.
    """
    factor = torch.linalg.qr(matrix, mode="r").R
    _, values, right = torch.linalg.svd(factor.cpu(), full_matrices=False)
    return values.to(matrix.device), right.to(matrix.device)


def _numerical_rank(values: Tensor) -> tuple[int, bool]:
    """Count the singular values that stand out, and tell whether the rest is more than rounding."""
    floor = max(_ABOVE_NOISE * float(values.median()), 4e-16 * float(values[0]))
    rank = int((values > floor).sum())
    # More than rounding in float32: noise, pruning or local steps.
    return rank, float(values.median()) > 1e-6 * float(values[0]) or rank == 0


def _above(values: Tensor) -> int:
    """Count the singular values that are above float32 rounding of the largest."""
    return int((values > _SINGLE * values[0]).sum())


def find_shared_column(head: TwoLayerHead) -> Tensor | None:
    """Which neurons `(m,)` share one column of A, if more than half of them do."""
    columns = head.above.T
    common: Tensor = (columns == columns.median(0).values).all(1)
    return common if 2 * int(common.sum()) > len(common) > 1 else None
