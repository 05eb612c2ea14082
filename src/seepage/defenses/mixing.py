"""Training on mixtures: what leaves the client was computed on no single person's input."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.core import Batch, Mixing, PreparedBatch, Rng
from seepage.core.errors import InvalidValue
from seepage.core.protocols import Stage
from seepage.defenses.chain import OnInputs

# A row beyond the bound is drawn again, and a bound that so many rows in a row miss is refused.
TRIALS = 1000


@dataclass(frozen=True, repr=False)
class MixUp(OnInputs):
    """Train on mixtures of k private inputs, with their labels mixed alike.

        e_i = sum_j W_ij x_j,   W_i ~ Dirichlet(3, 1, ..., 1) given that no entry exceeds the bound

    Every input leads one mixture, with k - 1 distinct partners from the same batch; partners and
    coefficients are drawn anew in every round. A server that knows them simulates the mixing, and
    searches for the inputs themselves.

    Args:
        k: How many inputs are in each mixture.
        bound: The largest coefficient allowed.

    Deviations:
        Partners come from the client's batch, which here is all of its data.

    References:
        Zhang et al., 2018 (zhang2018mixup); Huang et al., 2021, Sec. A.3 (huang2021evaluating) for
        k and the bound; the Dirichlet law is that of their code
    """

    stage: ClassVar[Stage] = "mixing"

    k: int
    bound: float = field(default=0.65, kw_only=True)

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.k < 2:
            raise InvalidValue(f"expected k >= 2 inputs in a mixture, got {self.k!r}")
        if not 1 / self.k < self.bound <= 1:
            raise InvalidValue(
                f"expected a bound in (1/k, 1], since {self.k} coefficients sum to 1, got "
                f"{self.bound!r}"
            )

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Mix."""
        batch = prepared.batch
        drawn = coefficients(len(batch), k=self.k, bound=self.bound, rng=rng)
        mixing = Mixing(drawn.to(batch.inputs.device))
        mixtures = mix(batch, mixing, classes=prepared.task.classes)
        return replace(prepared, batch=mixtures, target=mixtures, mixing=mixing)


@dataclass(frozen=True, repr=False)
class InstaHide(OnInputs):
    """Mix as `MixUp` does, then flip the sign of every entry at random.

        e_i = c + s * (sum_j W_ij x_j - c),   s uniform in {-1, 1} for every entry of every mixture

    c is the middle of the inputs' range, so that an encoding is a valid input. Partners come from
    the client's own data, which the paper calls Intra-InstaHide. A server that knows the mixing
    can solve for the inputs: see `seepage.attacks.unmix`.

    Args:
        k: How many inputs are in each mixture.
        bound: The largest coefficient allowed.

    References:
        Huang et al., 2020 (huang2020instahide); Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """

    stage: ClassVar[Stage] = "mixing"

    k: int
    bound: float = field(default=0.65, kw_only=True)

    def __post_init__(self) -> None:
        """Check the numbers."""
        self._mix_up()

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Mix, and flip signs."""
        mixed = self._mix_up().prepare(prepared, rng=rng.fork("mixing"))
        mixtures = mixed.batch.inputs
        centre = sum(prepared.task.domain.bounds) / 2
        coins = rng.fork("signs").uniform(mixtures.shape, like=mixtures)
        flipped = torch.where(coins < 0.5, 2 * centre - mixtures, mixtures)
        encodings = replace(mixed.batch, inputs=flipped)
        mixing = None if mixed.mixing is None else replace(mixed.mixing, flipped_about=centre)
        return replace(mixed, batch=encodings, target=encodings, mixing=mixing)

    def _mix_up(self) -> MixUp:
        return MixUp(self.k, bound=self.bound)


def mix(batch: Batch, mixing: Mixing, *, classes: int) -> Batch:
    """The mixtures that these coefficients make, before any sign is flipped; differentiable."""
    weights = mixing.coefficients.to(batch.inputs)
    labels = batch.labels if batch.labels.ndim == 2 else one_hot(batch.labels, classes)
    inputs = torch.einsum("eb,b...->e...", weights, batch.inputs)
    return Batch(inputs, weights @ labels.to(weights))


def coefficients(size: int, *, k: int, bound: float, rng: Rng) -> Tensor:
    """Draw the matrix W `(B, B)` for a batch of this size, in double precision.

    Example:
        >>> from seepage.core import rng
        >>> drawn = coefficients(6, k=4, bound=0.65, rng=rng(0))
        >>> drawn.shape, (drawn > 0).sum(1).tolist(), bool(drawn.max() <= 0.65)
        (torch.Size([6, 6]), [4, 4, 4, 4, 4, 4], True)
    """
    if size < k:
        raise InvalidValue(
            f"expected a batch of at least k = {k} inputs to mix, got {size}; use a larger batch "
            "or a smaller k"
        )
    order = rng.fork("partners").uniform((size, size)).fill_diagonal_(-1.0).argsort(1)
    drawn = _bounded(size, k, bound, rng=rng.fork("coefficients"))
    return torch.zeros(size, size, dtype=drawn.dtype).scatter(1, order[:, :k], drawn)


def _bounded(size: int, k: int, bound: float, *, rng: Rng) -> Tensor:
    """Rows of k coefficients that sum to 1 and respect the bound, `(B, k)`."""
    rows = torch.zeros(size, k, dtype=torch.float64)
    todo = torch.ones(size, dtype=torch.bool)
    for trial in range(TRIALS):
        drawn = _dirichlet(size, k, rng=rng.fork(trial))
        accepted = todo & (drawn.amax(1) <= bound)
        rows[accepted] = drawn[accepted]
        todo &= ~accepted
        if not todo.any():
            return rows
    raise InvalidValue(
        f"hardly any {k} coefficients that sum to 1 stay below {bound!r}; use a larger bound"
    )


def _dirichlet(size: int, k: int, *, rng: Rng) -> Tensor:
    """Dirichlet(3, 1, ..., 1): shares of exponential draws, of which the first has three."""
    double = torch.zeros(0, dtype=torch.float64)
    parts = -torch.log1p(-rng.uniform((size, k + 2), like=double))
    shares = torch.cat([parts[:, :3].sum(1, keepdim=True), parts[:, 3:]], dim=1)
    return shares / shares.sum(1, keepdim=True)
