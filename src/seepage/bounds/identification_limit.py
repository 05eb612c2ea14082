"""How often any attack at all can identify a person, from the clipping and the noise alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch

from seepage.bounds.bound import EVERY_ATTACK, OTHERS_KNOWN
from seepage.bounds.dp import gaussian_blow_up
from seepage.clients.client import Client
from seepage.clients.gradient import Gradient
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import require_at_least
from seepage.core.rng import require_key
from seepage.defenses.clip import AddGaussian, Clip, ClipEach, Mean

# The metric that it bounds: how often a person is first among strangers.
IDENTIFIED = "identified"
NO_LIMIT = (
    "nothing bounds how far one person can move the update; clip each example before the noise, as "
    "dp_sgd does, or clip the whole update right before it"
)


@dataclass(frozen=True)
class IdentificationLimit:
    """No attack on one update puts a person first among N strangers more often.

    The private example is one of N + 1 candidates, all as likely, and the adversary knows the rest
    of the batch. Clipping keeps the updates of all candidates within a distance C of one point, and
    normal noise of sigma C is added. Then

        P(first of N + 1) <= Phi(Phi^-1(1 / (N + 1)) + 1 / sigma)

    Two orders of clipping and noise are sound: `dp_sgd` on one gradient, where the point is the
    update without the example, and `Clip(C)` right before `AddGaussian`, whatever came before them,
    where the point is zero. What follows the noise changes nothing. Without clipping there is no
    limit, however large the noise.

    Args:
        strangers: N.

    Example:
        >>> limit = IdentificationLimit(strangers=99)
        >>> limit.luck, round(limit.chance(noise_multiplier=50.0), 4)
        (0.01, 0.0105)

    References:
        Hayes et al., 2023 (hayes2023bounding), the blow-up of two Gaussians
    """

    name: ClassVar[str] = "identification_limit"

    strangers: int = 100

    def __post_init__(self) -> None:
        require_at_least(1, strangers=self.strangers)

    @property
    def luck(self) -> float:
        """How often a guess that ignores the update comes first."""
        return 1 / (self.strangers + 1)

    def chance(self, *, noise_multiplier: float) -> float:
        """How often any attack does, behind noise of sigma times the clipping norm."""
        return gaussian_blow_up(self.luck, noise_multiplier=noise_multiplier)

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Limit how often each person of the batch can be identified."""
        require_key(rng)
        sigma = _read_noise(client, len(batch))
        chance = self.chance(noise_multiplier=sigma)
        value = torch.full((len(batch),), chance, dtype=torch.float64, device="cpu")
        assumed = (
            EVERY_ATTACK,
            OTHERS_KNOWN,
            "one update is shared, and nothing else that was computed from the batch",
            f"strangers and the person are all as likely; luck alone comes first in "
            f"{100 * self.luck:.3g} % of the cases",
        )
        return BoundValue(value, "upper", IDENTIFIED, assumed, "" if sigma else NO_LIMIT)


def _read_noise(client: Client, batch_size: int) -> float:
    """The noise in units of the clipping norm; 0 if nothing is clipped in a sound order."""
    links = client.chain.links
    found = [
        noise.std / clip.max_norm
        for clip, noise in pairwise(links)
        if isinstance(clip, Clip) and isinstance(noise, AddGaussian)
    ]
    match links[:3]:
        case (ClipEach(max_norm=norm), Mean(over=size), AddGaussian(std=std)):
            if isinstance(client.local, Gradient):
                found.append(std * (size or batch_size) / norm)
    return max(found, default=0.0)
