"""Counting equations: what an architecture leaves open whatever the weights and the inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from seepage.bounds.cramer_rao import around
from seepage.bounds.information import nothing_said, require_radius
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import NotApplicable
from seepage.core.rng import require_key
from seepage.exposure.inspection import inspection, rank_metric

UNSTRUCTURED = "what has no equation is guessed, from entries of no known structure"


@dataclass(frozen=True, kw_only=True)
class EquationCount:
    """What a first layer leaves open by having fewer equations than the batch has unknowns.

        open = 1 - width / needed,   rmse >= sqrt(open) h / pi

    with `needed` the hidden units or filters at which equations are as many as unknowns.

    Args:
        radius: How far entries that nothing determines range, as a share of the domain's.

    References:
        Qian and Hansen, 2020, Propositions 1 to 3 (qian2020what)
    """

    name: ClassVar[str] = "equation_count"

    radius: float = 0.25

    def __post_init__(self) -> None:
        """Check the radius."""
        require_radius(self.radius)

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Count; the defense plays no part and nothing is random."""
        require_key(rng)
        first = inspection(task, batches=(len(batch),)).first
        if first is None:
            return nothing_said(
                batch, f"the first layer of {task.name} is neither fully connected nor convolving"
            )
        (count,) = first.counts
        if count.enough:
            return nothing_said(
                batch,
                f"{first.width} {first.kind} in {first.name} give as many equations as the batch "
                "has unknowns",
            )
        if count.needed is None or first.width >= count.needed:
            return nothing_said(
                batch,
                f"no number of {first.kind} in {first.name} determines a batch of {len(batch)}, "
                "and the rule does not say how much is open",
            )
        return BoundValue(
            _guessed(task, batch, self.radius, 1 - first.width / count.needed),
            "lower",
            "rmse",
            (
                f"{first.name} has {first.width} {first.kind}, of {count.needed} that a batch of "
                f"{len(batch)} needs",
                "equations are independent, and the layers behind add none",
                UNSTRUCTURED,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RankDeficiency:
    """What a first convolution leaves open of one example, by the rank of its linear system.

        open = (n - rank u_1) / n,   rmse >= sqrt(open) h / pi

    Later layers may be deficient too, which only solving layer by layer minds.

    Args:
        radius: How far entries that nothing determines range, as a share of the domain's.

    References:
        Chen and Campbell, 2022, Definition 3.3 (chen2022analysing)
    """

    name: ClassVar[str] = "rank_deficiency"

    radius: float = 0.25

    def __post_init__(self) -> None:
        """Check the radius."""
        require_radius(self.radius)

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Count; the defense plays no part and nothing is random."""
        require_key(rng)
        try:
            metric = rank_metric(task)
        except NotApplicable as reason:
            return nothing_said(batch, str(reason))
        if not metric.layers:
            return nothing_said(batch, f"{task.name} has no convolution")
        first = metric.layers[0]
        if first.deficiency == 0:
            return nothing_said(
                batch, f"{first.name} has an equation for every unknown: {metric.advice}"
            )
        return BoundValue(
            _guessed(task, batch, self.radius, -first.deficiency / first.unknowns),
            "lower",
            "rmse",
            (
                f"{-first.deficiency} of {first.unknowns} unknowns have no equation in "
                f"{first.name}; the rank metric is {metric.value:g}",
                "each example is solved for by itself, layer by layer",
                UNSTRUCTURED,
            ),
        )


def _guessed(task: Task, batch: Batch, radius: float, share: float) -> Tensor:
    """The error of guessing a share of the entries within the radius, `(B,)`."""
    _, half = around(batch.inputs.double().cpu(), task.domain.bounds, radius)
    return half.flatten(1).amin(1) / math.pi * math.sqrt(share)
