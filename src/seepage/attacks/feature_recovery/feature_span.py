"""The space that the features span, read off the gradient of the layer that reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.probing.heads import TwoLayerHead

_SWEEPS = 40
_STALLED = 0.99


def complete_matrix(matrix: Tensor, rank: int) -> tuple[Tensor, float]:
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
        >>> filled, left = complete_matrix(pruned, 1)
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


# Singular values of rounding stay within so many times their median, also where entries differ in
# size, and rounding with them.
_ABOVE_NOISE = 16.0
# Rounding to single precision, 6e-8 of every entry, adds up to this of the largest one at most.
_SINGLE = 1e-7
# Below this gap to the next singular value the directions in a span are not to be relied on.
_CLEAN = 1e-2


@dataclass(frozen=True, eq=False)
class FeatureSpan:
    """dL/dW = left @ mixtures, where every row of the mixtures is a combination of features.

    Args:
        left: `(m, B)`, orthonormal columns.
        mixtures: `(B, d)`, orthogonal rows.
        noise: The next singular value, or what filling in left over, over the last that counts.
        filled: Whether entries of the gradient were missing and had to be filled in.
    """

    left: Tensor
    mixtures: Tensor
    noise: float
    filled: bool = False

    @property
    def people(self) -> int:
        """The number of features."""
        return len(self.mixtures)

    @property
    def clean(self) -> bool:
        """Whether the features lie in it but for rounding."""
        return self.noise < _CLEAN

    @property
    def basis(self) -> Tensor:
        """Orthonormal columns `(d, B)`."""
        units: Tensor = self.mixtures / self.mixtures.norm(dim=1, keepdim=True)
        return units.T


def feature_span(head: TwoLayerHead, people: int | None) -> FeatureSpan | None:
    """The span of as many features as there are people, or as the rank says if that is unknown.

    Returns:
        None where the gradient of the first layer is not in the update, or is zero.

    Raises:
        MissingKnowledge: Noise hides the number of people, and it is not known.
        NotApplicable: Fewer features left a trace than there are people.

    References:
        Huang et al., 2021, Lemma B.1 (huang2021evaluating)
    """
    if head.first is None or not bool(head.first.any()):
        if people is None:
            raise MissingKnowledge(
                "batch size", needed_by="feature recovery", hint="use knows_batch_size=True"
            )
        return None
    _require_room(head, people)
    rest = 0.0
    whole = head.first
    values, right = _singular(whole)
    rank, noisy = _rank(values)
    # Zeros of a gradient that has a rank as it is are its own, and none to be filled in.
    if people is not None and (noisy or rank > people) and _standing_out(values) > people:
        whole, rest = complete_matrix(head.first, people)
        if whole is not head.first:
            values, right = _singular(whole)
            rank, noisy = _rank(values)
    if people is None and _is_single(head.first):
        rank = min(rank, _standing_out(values))
    count = _count(people, rank, noisy, head)
    after = float(values[count]) if count < len(values) else 0.0
    noise = max(after, rest) / float(values[count - 1].clamp_min(1e-300))
    values, right = values[:count, None], right[:count]
    left, signs = torch.linalg.qr(whole @ (right / values.clamp_min(1e-300)).T)
    filled = whole is not head.first
    return FeatureSpan(left * signs.diagonal().sign(), values * right, noise, filled)


def _singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and right vectors (rows) of a tall matrix, by way of its triangular factor.

    The left vectors are not needed, so they are not computed. The small matrix is decomposed on the
    CPU, which is much faster at it than a GPU.
    """
    factor = torch.linalg.qr(matrix, mode="r").R
    _, values, right = torch.linalg.svd(factor.cpu(), full_matrices=False)
    return values.to(matrix.device), right.to(matrix.device)


def _rank(values: Tensor) -> tuple[int, bool]:
    """How many singular values stand out, and whether more than rounding lies below them."""
    floor = max(_ABOVE_NOISE * float(values.median()), 4e-16 * float(values[0]))
    rank = int((values > floor).sum())
    # More than rounding in float32: noise, pruning or local steps.
    return rank, float(values.median()) > 1e-6 * float(values[0]) or rank == 0


def _standing_out(values: Tensor) -> int:
    """How many singular values are above what single precision leaves of the largest."""
    return int((values > _SINGLE * values[0]).sum())


def _is_single(matrix: Tensor) -> bool:
    return torch.equal(matrix.float().double(), matrix)


def _require_room(head: TwoLayerHead, people: int | None) -> None:
    if people is not None and people > min(head.weight.shape):
        raise NotApplicable(
            f"{people} features through a layer of {len(head.weight)} neurons that read "
            f"{head.weight.shape[1]} numbers cannot be told apart; at least {people} of both are "
            "needed"
        )


def _count(people: int | None, rank: int, noisy: bool, head: TwoLayerHead) -> int:
    if people is None:
        if noisy:
            raise MissingKnowledge(
                "batch size",
                needed_by="feature recovery from an update with noise or pruning",
                hint="use knows_batch_size=True",
            )
        return rank
    if not noisy and rank < people:
        raise NotApplicable(
            f"the gradient of {head.layer!r} has rank {rank} for {people} people: some features "
            "are equal, or the network is so sure of some people that their gradient is lost in "
            "rounding; withhold the batch size to recover the others"
        )
    return people


def find_shared_column(head: TwoLayerHead) -> Tensor | None:
    """Which neurons `(m,)` have one column of A in common, if most do."""
    columns = head.above.T
    common: Tensor = (columns == columns.median(0).values).all(1)
    return common if 2 * int(common.sum()) > len(common) > 1 else None
