"""No attack at all comes closer on average: the Cramér-Rao bound for biased guesses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds.channel import channel, nothing_said, require_radius, require_std, within
from seepage.bounds.cramer_rao import KNOWN, computed, granted
from seepage.bounds.information import information
from seepage.bounds.inverse_trace import Inversion
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key


@dataclass(frozen=True, kw_only=True)
class VanTrees:
    """No attack comes closer on average over inputs like these, biased or not.

        E ||guess_i - x_i||^2 >= tr_i((E J^T J / sigma^2 + diag(pi^2 / h^2))^-1)

    The means are over inputs whose entries lie independently around the private ones, at c + t
    with density cos^2(pi t / 2h) / h for |t| < h; the interval c +- h is what the domain leaves of
    `radius` to either side. Such a prior holds pi^2 / h^2 of information per entry, so the bound
    never exceeds h / pi. As an average never exceeds the worst case, it bounds the minimax risk
    over these inputs too. An adversary who knows more of the inputs than that, that images are
    smooth say, may come closer.

    Args:
        radius: How far entries range, as a share of what the domain allows.
        points: From how many inputs the mean of J^T J is taken.
        std: Noise of an update that the defense leaves without.
        inversion: How the trace is computed.

    Example:
        >>> import seepage as sp
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(1e3))
        >>> task = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((1, 4, 4)))
        >>> grey = sp.Batch(torch.full((1, 1, 4, 4), 0.5), torch.tensor([3]))
        >>> blind = VanTrees(radius=0.5)(client, task, grey, rng=sp.rng(0)).value
        >>> blind.round(decimals=4)  # 1 / (2 pi)
        tensor([0.1592], dtype=torch.float64)

    References:
        van Trees, 1968 (trees1968detection); Gill and Levit, 1995 (gill1995applications)
    """

    name: ClassVar[str] = "van_trees"

    radius: float = 0.25
    points: int = 4
    std: float = 0.0
    inversion: Inversion = field(default_factory=Inversion)

    def __post_init__(self) -> None:
        """Check the numbers."""
        require_std(self.std)
        require_radius(self.radius)
        if self.points < 1:
            raise InvalidValue(f"expected points >= 1, got {self.points!r}")

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the root mean squared error of each person."""
        require_key(rng)
        try:
            seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"))
        except NotApplicable as reason:
            return nothing_said(batch, str(reason))
        centre, half = around(batch.inputs.double(), task.domain.bounds, self.radius)
        draws = [cosine_draws(half, rng=rng.fork("point", k)) for k in range(self.points)]
        points = torch.stack([centre + draw for draw in draws])
        about = information(seen, task, batch, points)
        about = replace(about, prior=(math.pi / half.flatten()).square())
        trace = self.inversion(about, len(batch), rng=rng.fork("inverse"))
        value = (trace.value / batch.inputs[0].numel()).sqrt().cpu()
        return BoundValue(
            value, "lower", "rmse", (within(self.radius), KNOWN, *granted(seen), *computed(trace))
        )


def around(inputs: Tensor, bounds: tuple[float, float], radius: float) -> tuple[Tensor, Tensor]:
    """Centre and half-width of the interval around every entry, cut at the bounds.

    Example:
        >>> around(torch.tensor([0.0, 0.5]), (0.0, 1.0), 0.25)
        (tensor([0.1250, 0.5000]), tensor([0.1250, 0.2500]))
    """
    low, high = bounds
    reach = radius * (high - low)
    least, most = (inputs - reach).clamp_min(low), (inputs + reach).clamp_max(high)
    return (least + most) / 2, (most - least) / 2


def cosine_draws(half: Tensor, *, rng: Rng) -> Tensor:
    """Draws t with density cos^2(pi t / 2h) / h on |t| < h, for every h.

    The distribution function (u + 1) / 2 + sin(pi u) / 2 pi of u = t / h is inverted by bisection.
    """
    wanted = rng.uniform(half.shape, like=half)
    least, most = -torch.ones_like(half), torch.ones_like(half)
    for _ in range(50):
        middle = (least + most) / 2
        below = (middle + 1) / 2 + torch.sin(math.pi * middle) / (2 * math.pi) < wanted
        least, most = torch.where(below, middle, least), torch.where(below, most, middle)
    return half * (least + most) / 2
