"""What Rényi differential privacy says of the error of unbiased attacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from seepage.bounds.dp.mechanism import mechanism
from seepage.clients import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.rng import require_key

ASSUMPTIONS = (
    "the attack is unbiased: over the noise it is right on average, whoever took part",
    "the adversary may know everybody else in the batch",
    "one update is shared",
)


def renyi_rmse(*, noise_multiplier: float, width: float = 1.0) -> float:
    """The RMSE per entry of every unbiased attack on one step of DP-SGD, at least.

    An entry can be exchanged for one at least half the width w away. That moves the sum of
    clipped gradients by at most 2 C, so the divergence of order 2 is at most 4 / sigma^2, and by
    Hammersley, Chapman and Robbins

        MSE >= (w / 2)^2 / (e^(4 / sigma^2) - 1)

    Args:
        noise_multiplier: sigma, the noise in units of the clipping norm.
        width: w, of the range of an entry.

    Example:
        >>> round(renyi_rmse(noise_multiplier=2.0), 4)
        0.3814
        >>> renyi_rmse(noise_multiplier=0.0)
        0.0

    References:
        Guo et al., 2022 (guo2022bounding), the bound from Rényi DP
    """
    if noise_multiplier == 0:
        return 0.0
    divergence = 4 / noise_multiplier**2
    # (e^D - 1)^(-1/2) without overflow.
    return width / 2 * math.exp(-divergence / 2) / math.sqrt(-math.expm1(-divergence))


@dataclass(frozen=True)
class RenyiError:
    """No unbiased attack on DP-SGD errs by less: w / (2 sqrt(e^(4 / sigma^2) - 1)) per entry.

    References:
        Guo et al., 2022 (guo2022bounding), the bound from Rényi DP
    """

    name: ClassVar[str] = "renyi_error"

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """The same number for everybody: it holds whatever the inputs are."""
        require_key(rng)
        found = mechanism(client)
        low, high = task.domain.bounds
        remark = ""
        if found is None:
            remark = (
                "it is of DP-SGD alone: expected Gradient() behind chain(ClipEach(C), "
                "Mean(over=B), AddGaussian(std)), as dp_sgd(...) makes it"
            )
        elif found.std == 0:
            remark = "no noise is added, so that nothing is promised"
        sigma = 0.0 if found is None else found.noise_multiplier
        error = renyi_rmse(noise_multiplier=sigma, width=high - low)
        return BoundValue(
            torch.full((len(batch),), error, dtype=torch.float64, device="cpu"),
            side="lower",
            metric="rmse",
            assumptions=ASSUMPTIONS,
            remark=remark,
        )
