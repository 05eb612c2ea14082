"""What an update leaves undetermined: by its Jacobian, or by counting the equations of a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds._bound import (
    LowerBound,
    bound_below,
    describe_intervals,
    find_intervals,
)
from seepage.bounds._information import channel, information
from seepage.bounds._inverse_trace import RESOLVED, Inversion
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core._client import Client
from seepage.core._rng import require_key
from seepage.core.errors import NotApplicable, require_at_least, require_within
from seepage.exposure._inspection import inspection
from seepage.exposure._rank_metric import rank_metric

LINEAR = "the update is treated as linear around the inputs"
UNSTRUCTURED = "entries without an equation are guessed, without any known structure"


@dataclass(frozen=True, eq=False)
class Determined:
    """The singular value decomposition of J, starting with the smallest values.

    Args:
        rank: Directions that change the update, of `unknowns`.
        unknowns: Entries of all inputs.
        singular_values: The smallest, in rising order, `(k,)`.
        directions: Unit vectors that change the update by that much, `(k, B, ...)`.
        largest: The largest singular value.
        open: For each example, the number of its directions that change nothing, `(B,)`: the trace
            of its block of the projection onto them.
    """

    rank: int
    unknowns: int
    singular_values: Tensor
    directions: Tensor
    largest: float
    open: Tensor


@dataclass(frozen=True, kw_only=True)
class Identifiability(LowerBound):
    """The error that stays however precisely the update is observed: directions J does not change.

        E ||guess_i - x_i||^2 >= sum over v with J v = 0 of ||v_i||^2 (h / pi)^2

    This is the limit of `VanTrees` as the noise vanishes, for an update that is linear around the
    inputs. h is the half-width of the narrowest interval of all entries. `determined` returns the
    singular values and the directions themselves.

    Args:
        radius: How far entries vary, as a share of the domain's range.
        held: Numbers up to which J^T J is formed, as in `Inversion`.
        shown: Number of directions that `determined` returns.

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
        require_within("(0, 1]", radius=self.radius)
        require_at_least(1, shown=self.shown)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Bound the error by the open directions of each example."""
        found = self.determined(client, task, batch, rng=rng)
        left = found.unknowns - found.rank
        if not left:
            raise NotApplicable(
                f"the update determines all {found.unknowns} directions around the inputs"
            )
        _, half = find_intervals(batch.inputs.double(), task.domain.bounds, self.radius)
        # The narrowest interval of all, since an open direction may run through every example.
        reach = float(half.amin()) / math.pi
        return bound_below(
            reach * (found.open.cpu() / batch.inputs[0].numel()).sqrt(),
            f"{left} of {found.unknowns} directions do not change the update",
            LINEAR,
            describe_intervals(self.radius),
        )

    def determined(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Determined:
        """Compute the rank of J, its smallest singular values and their directions."""
        require_key(rng)
        seen = channel(client, task, batch, std=1.0, rng=rng.fork("client"))
        about = information(replace(seen, std=1.0), task, batch)
        if not Inversion(held=self.held).fits(about):
            raise NotApplicable(
                f"J has {about.equations} x {about.unknowns} entries, and `held` is {self.held}: "
                "J^T J would take too long; use fewer or smaller inputs, a GPU, or raise `held`"
            )
        values, vectors = torch.linalg.eigh(about.dense())
        known = values > RESOLVED * values[-1]
        return Determined(
            rank=int(known.sum()),
            unknowns=about.unknowns,
            singular_values=values[: self.shown].clamp_min(0).sqrt(),
            directions=vectors[:, : self.shown].T.reshape(-1, *batch.inputs.shape),
            largest=float(values[-1].clamp_min(0).sqrt()),
            open=vectors[:, ~known].square().sum(1).reshape(len(batch), -1).sum(1),
        )


@dataclass(frozen=True, kw_only=True)
class EquationCount(LowerBound):
    """The error left by a first layer with fewer equations than the batch has unknowns.

        open = 1 - width / needed,   rmse >= sqrt(open) h / pi

    `needed` is the number of hidden units or filters that give as many equations as unknowns. The
    defense plays no part.

    Args:
        radius: How far undetermined entries vary, as a share of the domain's range.

    References:
        Qian and Hansen, 2020, Propositions 1 to 3 (qian2020what)
    """

    name: ClassVar[str] = "equation_count"

    radius: float = 0.25

    def __post_init__(self) -> None:
        require_within("(0, 1]", radius=self.radius)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Count equations and unknowns; nothing is random."""
        first = inspection(task, batches=(len(batch),)).first
        if first is None:
            raise NotApplicable(
                f"the first layer of {task.name} is neither fully connected nor a convolution"
            )
        (count,) = first.counts
        if count.enough:
            raise NotApplicable(
                f"{first.width} {first.kind} in {first.name} give as many equations as the batch "
                "has unknowns"
            )
        if count.needed is None or first.width >= count.needed:
            raise NotApplicable(
                f"no number of {first.kind} in {first.name} determines a batch of {len(batch)}, "
                "and the rule does not say how much is open"
            )
        return bound_below(
            _guess_share(task, batch, self.radius, 1 - first.width / count.needed),
            f"{first.name} has {first.width} {first.kind}, of {count.needed} that a batch of "
            f"{len(batch)} needs",
            "equations are independent, and later layers add none",
            UNSTRUCTURED,
        )


@dataclass(frozen=True, kw_only=True)
class RankDeficiency(LowerBound):
    """The error left for one example by the rank of the first convolution's linear system.

        open = (n - rank u_1) / n,   rmse >= sqrt(open) h / pi

    Later layers may be rank-deficient too, which matters only to attacks that solve layer by layer.
    The defense plays no part.

    Args:
        radius: How far undetermined entries vary, as a share of the domain's range.

    References:
        Chen and Campbell, 2022, Definition 3.3 (chen2022analysing)
    """

    name: ClassVar[str] = "rank_deficiency"

    radius: float = 0.25

    def __post_init__(self) -> None:
        require_within("(0, 1]", radius=self.radius)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Count equations and unknowns; nothing is random."""
        metric = rank_metric(task)
        if not metric.layers:
            raise NotApplicable(f"{task.name} has no convolution")
        first = metric.layers[0]
        if first.deficiency == 0:
            raise NotApplicable(f"{first.name} has an equation for every unknown: {metric.advice}")
        return bound_below(
            _guess_share(task, batch, self.radius, -first.deficiency / first.unknowns),
            f"{-first.deficiency} of {first.unknowns} unknowns have no equation in "
            f"{first.name}; the rank metric is {metric.value:g}",
            "each example is solved for separately, layer by layer",
            UNSTRUCTURED,
        )


def _guess_share(task: Task, batch: Batch, radius: float, share: float) -> Tensor:
    """Compute the error of guessing a share of the entries within the radius, `(B,)`."""
    _, half = find_intervals(batch.inputs.double().cpu(), task.domain.bounds, radius)
    return half.flatten(1).amin(1) / math.pi * math.sqrt(share)
