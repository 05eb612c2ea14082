"""Defenses on the training data: mixtures of inputs, and rotated or mirrored copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.core import Batch, Mixing, PreparedBatch, Rng
from seepage.core._chain import OnInputs
from seepage.core._protocols import Stage
from seepage.core.errors import InvalidValue

# A row of coefficients that exceeds the bound is drawn again, this many times at most.
TRIALS = 1000


@dataclass(frozen=True, repr=False)
class _MixInputs(OnInputs):
    """Abstract: mix k inputs of a batch with random coefficients."""

    stage: ClassVar[Stage] = "mixing"

    k: int
    bound: float = field(default=0.65, kw_only=True)

    def __post_init__(self) -> None:
        if self.k < 2:
            raise InvalidValue(f"expected k >= 2 inputs in a mixture, got {self.k!r}")
        if not 1 / self.k < self.bound <= 1:
            raise InvalidValue(
                f"expected a bound in (1/k, 1], since {self.k} coefficients sum to 1, got "
                f"{self.bound!r}"
            )

    def _mix(self, prepared: PreparedBatch, rng: Rng) -> tuple[Batch, Mixing]:
        batch = prepared.batch
        drawn = _draw_coefficients(len(batch), k=self.k, bound=self.bound, rng=rng)
        mixing = Mixing(drawn.to(batch.inputs.device))
        return mix(batch, mixing, classes=prepared.task.classes), mixing


@dataclass(frozen=True, repr=False)
class MixUp(_MixInputs):
    """Train on mixtures of k private inputs, with their labels mixed alike.

        e_i = sum_j W_ij x_j,   W_i ~ Dirichlet(3, 1, ..., 1) given that no entry exceeds the bound

    Every input leads one mixture, with k - 1 distinct partners from the same batch. Partners and
    coefficients are drawn anew in every round. A server that knows them simulates the mixing and
    searches for the inputs themselves.

    Args:
        k: Number of inputs in each mixture.
        bound: Largest coefficient allowed.

    Deviations:
        Partners come from the client's batch, which here is all of its data.

    References:
        Zhang et al., 2018 (zhang2018mixup); Huang et al., 2021, Sec. A.3 (huang2021evaluating) for
        k and the bound; the Dirichlet law is that of their code
    """

    label = "MixUp k={k}"

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Mix the batch with fresh coefficients."""
        mixtures, mixing = self._mix(prepared, rng)
        return replace(prepared, batch=mixtures, target=mixtures, mixing=mixing)


@dataclass(frozen=True, repr=False)
class InstaHide(_MixInputs):
    """Mix as `MixUp` does, then flip the sign of every entry at random.

        e_i = c + s * (sum_j W_ij x_j - c),   s uniform in {-1, 1} for every entry of every mixture

    c is the middle of the inputs' range, so an encoding is a valid input. Partners come from the
    client's own data; the paper calls this Intra-InstaHide. A server that knows the mixing can
    solve for the inputs: see `seepage.attacks.unmix`.

    Args:
        k: Number of inputs in each mixture.
        bound: Largest coefficient allowed.

    References:
        Huang et al., 2020 (huang2020instahide); Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """

    label = "InstaHide k={k}"

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Mix, then flip signs."""
        mixtures, mixing = self._mix(prepared, rng.fork("mixing"))
        centre = sum(prepared.task.domain.bounds) / 2
        coins = rng.fork("signs").uniform(mixtures.inputs.shape, like=mixtures.inputs)
        flipped = torch.where(coins < 0.5, 2 * centre - mixtures.inputs, mixtures.inputs)
        encodings = replace(mixtures, inputs=flipped)
        mixing = replace(mixing, flipped_about=centre)
        return replace(prepared, batch=encodings, target=encodings, mixing=mixing)


def mix(batch: Batch, mixing: Mixing, *, classes: int) -> Batch:
    """Mix inputs and labels with these coefficients, differentiably; no sign is flipped."""
    weights = mixing.coefficients.to(batch.inputs)
    labels = batch.labels if batch.labels.ndim == 2 else one_hot(batch.labels, classes)
    inputs = torch.einsum("eb,b...->e...", weights, batch.inputs)
    return Batch(inputs, weights @ labels.to(weights))


def _draw_coefficients(size: int, *, k: int, bound: float, rng: Rng) -> Tensor:
    """Draw the matrix W `(B, B)` for a batch of this size, in double precision.

    Example:
        >>> from seepage.core import rng
        >>> drawn = _draw_coefficients(6, k=4, bound=0.65, rng=rng(0))
        >>> drawn.shape, (drawn > 0).sum(1).tolist(), bool(drawn.max() <= 0.65)
        (torch.Size([6, 6]), [4, 4, 4, 4, 4, 4], True)
    """
    if size < k:
        raise InvalidValue(
            f"expected a batch of at least k = {k} inputs to mix, got {size}; use a larger batch "
            "or a smaller k"
        )
    order = rng.fork("partners").uniform((size, size)).fill_diagonal_(-1.0).argsort(1)
    drawn = _draw_bounded(size, k, bound, rng=rng.fork("coefficients"))
    return torch.zeros(size, size, dtype=drawn.dtype).scatter(1, order[:, :k], drawn)


def _draw_bounded(size: int, k: int, bound: float, *, rng: Rng) -> Tensor:
    """Draw rows of k coefficients that sum to 1 and respect the bound, `(B, k)`."""
    rows = torch.zeros(size, k, dtype=torch.float64)
    todo = torch.ones(size, dtype=torch.bool)
    for trial in range(TRIALS):
        drawn = _draw_dirichlet(size, k, rng=rng.fork(trial))
        accepted = todo & (drawn.amax(1) <= bound)
        rows[accepted] = drawn[accepted]
        todo &= ~accepted
        if not todo.any():
            return rows
    raise InvalidValue(
        f"hardly any {k} coefficients that sum to 1 stay below {bound!r}; use a larger bound"
    )


def _draw_dirichlet(size: int, k: int, *, rng: Rng) -> Tensor:
    """Draw from Dirichlet(3, 1, ..., 1): shares of exponential draws, three for the first."""
    double = torch.zeros(0, dtype=torch.float64)
    parts = -torch.log1p(-rng.uniform((size, k + 2), like=double))
    shares = torch.cat([parts[:, :3].sum(1, keepdim=True), parts[:, 3:]], dim=1)
    return shares / shares.sum(1, keepdim=True)


@dataclass(frozen=True, repr=False)
class Oasis(OnInputs):
    """Add to the batch every image rotated by 90, 180 and 270 degrees, mirrored, or both.

    This defends against servers that plant weights to isolate one input: an input and its copies
    activate the same neurons, so the server isolates only their sum. There is no randomness. A
    server that knows of the flips mirrors its own candidate too. It does not simulate rotations:
    a candidate and its rotations give the same update, so a search ends rotated or in between, and
    searches that ignored the rotations recovered more.

    Args:
        rotations: Add the three rotated images; they must be square.
        flips: Add the images mirrored left to right and top to bottom.

    Example:
        >>> Oasis(flips=True)
        Oasis(flips=True)

    Deviations:
        The paper also tries small rotations and shearing, which need interpolation.

    References:
        Jeter et al., 2024 (jeter2024oasis)
    """

    label = "Oasis"
    stage: ClassVar[Stage] = "data"

    rotations: bool = field(default=True, kw_only=True)
    flips: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not (self.rotations or self.flips):
            raise InvalidValue("expected rotations, flips or both, got neither; use chain()")

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Add the copies; there is no randomness."""
        return self._augment(prepared)

    def prepare_expected(self, prepared: PreparedBatch) -> PreparedBatch:
        """Add the copies, unless rotations would leave the orientation of an image open."""
        return prepared if self.rotations else self._augment(prepared)

    def _augment(self, prepared: PreparedBatch) -> PreparedBatch:
        """Add the copies; the target is still the batch without them."""
        inputs = prepared.batch.inputs
        if inputs.ndim != 4:
            shape = tuple(inputs.shape[1:])
            raise InvalidValue(f"{self} rotates images (C, H, W), got inputs of shape {shape}")
        height, width = inputs.shape[-2:]
        if self.rotations and height != width:
            raise InvalidValue(
                f"{self} rotates square images, got {height} x {width}; use "
                "Oasis(rotations=False, flips=True)"
            )
        rotations = [partial(torch.rot90, k=quarters, dims=(-2, -1)) for quarters in (1, 2, 3)]
        flips = [partial(torch.flip, dims=(axis,)) for axis in (-1, -2)]
        views: list[Callable[[Tensor], Tensor]] = [*rotations * self.rotations, *flips * self.flips]
        copies = [inputs, *(view(inputs) for view in views)]
        labels = torch.cat([prepared.batch.labels] * len(copies))
        return replace(prepared, batch=Batch(torch.cat(copies), labels))
