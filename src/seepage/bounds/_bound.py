"""Bounds: the interface, and what all lower bounds on the RMSE share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core._client import Client
from seepage.core._rng import require_key
from seepage.core.errors import NotApplicable

# Which attacks a lower bound covers, among its assumptions; reports raise an alarm by these.
EVERY_ATTACK = "every attack is covered, biased or not"
UNBIASED = "the attack is unbiased: over the noise it is right on average, for every input"
# Of bounds whose prior is a finite set.
AMONG = "on average over candidates that are all as likely"
# Of bounds on another client than the one that was attacked.
SEEN_WITH = "the update is seen with noise that the client does not add"
KNOWN = "the labels are known, and nothing else is seen: no statistics, no other round"
OTHERS_KNOWN = "holds even for an adversary who knows all other examples of the batch"


@runtime_checkable
class Bound(Protocol):
    """A bound on what attacks can reach: a frozen value."""

    @property
    def name(self) -> str:
        """The key in tables."""

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the error of reconstructions from this client's update, example by example.

        Args:
            client: The client that shares, with its defense.
            task: The broadcast network, in the mode the client runs it.
            batch: The private batch. Bounds depend on the truth; attacks never see them.
            rng: For bounds that sample directions.
        """


class LowerBound:
    """Abstract: a lower bound on the RMSE of each example, of zero where it does not apply."""

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the root mean squared error of each example."""
        require_key(rng)
        try:
            return self.bound_error(client, task, batch, rng)
        except NotApplicable as reason:
            nothing = torch.zeros(len(batch), dtype=torch.float64, device="cpu")
            return bound_below(nothing, remark=str(reason))

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Compute the bound.

        Raises:
            NotApplicable: It says nothing about this case; the message becomes the remark.
        """
        raise NotImplementedError


def bound_below(error: Tensor | Sequence[float], *assumptions: str, remark: str = "") -> BoundValue:
    """Build a lower bound on the RMSE from a value per example."""
    value = torch.as_tensor(error, dtype=torch.float64, device="cpu")
    return BoundValue(value, "lower", "rmse", assumptions, remark)


def find_intervals(
    inputs: Tensor, bounds: tuple[float, float], radius: float
) -> tuple[Tensor, Tensor]:
    """Centre and half-width of the interval around every entry, cut at the bounds.

    Example:
        >>> find_intervals(torch.tensor([0.0, 0.5]), (0.0, 1.0), 0.25)
        (tensor([0.1250, 0.5000]), tensor([0.1250, 0.2500]))
    """
    low, high = bounds
    reach = radius * (high - low)
    least, most = (inputs - reach).clamp_min(low), (inputs + reach).clamp_max(high)
    return (least + most) / 2, (most - least) / 2


def describe_intervals(radius: float) -> str:
    """Say over which inputs a bound is an average, as an assumption."""
    return (
        f"on average over inputs within {radius:g} of the range around these, where every entry "
        "varies independently"
    )
