"""What an update determines of its inputs, and the directions that it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds.cramer_rao import RESOLVED, Inversion, around
from seepage.bounds.information import (
    Information,
    channel,
    information,
    nothing_said,
    require_radius,
    within,
)
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key

LINEAR = "the update is taken for linear around the inputs"


@dataclass(frozen=True, eq=False)
class Determined:
    """The singular value decomposition of J, from its faint end.

    Args:
        rank: Directions that change the update, of `unknowns`.
        unknowns: Entries of all inputs.
        singular_values: The smallest, in rising order, `(k,)`.
        directions: Unit vectors that change the update by that much, `(k, B, ...)`.
        largest: The largest singular value.
        open: For each person, the number of its directions that change nothing, `(B,)`: the trace
            of its block of the projection onto them.
    """

    rank: int
    unknowns: int
    singular_values: Tensor
    directions: Tensor
    largest: float
    open: Tensor


@dataclass(frozen=True, kw_only=True)
class Identifiability:
    """What stays open however precisely the update is seen: the directions J does not change.

        E ||guess_i - x_i||^2 >= sum over v with J v = 0 of ||v_i||^2 (h / pi)^2

    the limit of `VanTrees` as the noise vanishes, for an update that is linear around the inputs,
    with h the narrowest of all the intervals that entries range over.
    `determined` gives the singular values and the directions themselves, to be looked at.

    Args:
        radius: How far entries range, as a share of what the domain allows.
        held: Numbers up to which J^T J is formed, as in `Inversion`.
        shown: How many directions `determined` gives.

    Example:
        >>> import seepage as sp
        >>> task = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((1, 4, 4)))
        >>> digits = sp.Batch(torch.rand(1, 1, 4, 4), torch.tensor([3]))
        >>> client = sp.Client(sp.Gradient())
        >>> Identifiability().determined(client, task, digits, rng=sp.rng(0)).rank
        16

    References:
        Liu et al., 2024, Eq. 28 (liu2024systematic); Gill and Levit, 1995 (gill1995applications)
    """

    name: ClassVar[str] = "identifiability"

    radius: float = 0.25
    held: int = 2**28
    shown: int = 8

    def __post_init__(self) -> None:
        """Check the numbers."""
        require_radius(self.radius)
        if self.shown < 1:
            raise InvalidValue(f"expected shown >= 1, got {self.shown!r}")

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the root mean squared error of each person."""
        try:
            found = self.determined(client, task, batch, rng=rng)
        except NotApplicable as reason:
            return nothing_said(batch, str(reason))
        if found.rank == found.unknowns:
            return nothing_said(
                batch, f"the update determines all {found.unknowns} directions around the inputs"
            )
        _, half = around(batch.inputs.double(), task.domain.bounds, self.radius)
        # The narrowest interval of all: open directions may run through anybody's entries.
        reach = float(half.amin()) / math.pi
        value = reach * (found.open.cpu() / batch.inputs[0].numel()).sqrt()
        left = found.unknowns - found.rank
        return BoundValue(
            value,
            "lower",
            "rmse",
            (
                f"{left} of {found.unknowns} directions leave the update as it is",
                LINEAR,
                within(self.radius),
            ),
        )

    def determined(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Determined:
        """The rank of J, its smallest singular values and their directions."""
        require_key(rng)
        seen = channel(client, task, batch, std=1.0, rng=rng.fork("client"))
        about = information(replace(seen, std=1.0), task, batch)
        if not Inversion(held=self.held).fits(about):
            raise NotApplicable(
                f"J has {about.equations} x {about.unknowns} entries, and `held` is {self.held}: "
                "J^T J would take too long; use fewer or smaller inputs, a GPU, or raise `held`"
            )
        return _decomposed(about, batch, self.shown)


def _decomposed(about: Information, batch: Batch, shown: int) -> Determined:
    values, vectors = torch.linalg.eigh(about.dense())
    known = values > RESOLVED * values[-1]
    left = vectors[:, ~known].square().sum(1).reshape(len(batch), -1).sum(1)
    return Determined(
        rank=int(known.sum()),
        unknowns=about.unknowns,
        singular_values=values[:shown].clamp_min(0).sqrt(),
        directions=vectors[:, :shown].T.reshape(-1, *batch.inputs.shape),
        largest=float(values[-1].clamp_min(0).sqrt()),
        open=left,
    )
