"""How often any attack can identify a person, and how near it gets, by clipping and noise alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch

from seepage.bounds._bound import AMONG, EVERY_ATTACK, OTHERS_KNOWN, bound_below
from seepage.bounds._candidates import OverCandidates
from seepage.bounds.dp import gaussian_blow_up, integrate_failure, read_noise_multiplier
from seepage.clients._gradient import Gradient
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core._client import Client
from seepage.core._rng import require_key
from seepage.core.errors import InvalidValue, require_at_least
from seepage.defenses._clip import AddGaussian, Clip, ClipEach, Mean

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
        # A client of several that are aggregated averages over its own part of the batch.
        examples = min(len(part) for part in client.chain.split(batch))
        sigma = read_guaranteed_noise(client.chain.links, client.local, examples)
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


def read_guaranteed_noise(links: Sequence[object], local: object, examples: int) -> float:
    """The noise in units of the clipping norm; 0 if nothing is clipped in a sound order.

    Args:
        links: The client's defenses.
        local: Its computation; clipping each example bounds one gradient only.
        examples: Of one client, at least; a mean that names no number is taken over them.
    """
    found = [
        noise.std / clip.max_norm
        for clip, noise in pairwise(links)
        if isinstance(clip, Clip) and isinstance(noise, AddGaussian)
    ]
    match links[:3]:
        case (ClipEach(max_norm=norm), Mean(over=size), AddGaussian(std=std)):
            if isinstance(local, Gradient):
                found.append(std * (size or examples) / norm)
    return max(found, default=0.0)


@dataclass(frozen=True, kw_only=True)
class ReconstructionRobustness(OverCandidates):
    """No attack on a differentially private client errs by less, on average over candidates.

        E rmse^2 >= integral over eta^2 of 1 - gamma(kappa(eta))

    kappa(eta) is how often a guess among the candidates comes within eta without any update, and
    gamma how often any attack does: `gaussian_blow_up` for one step of DP-SGD, or

        gamma = e^epsilon kappa + delta

    It holds whatever the network computes: only clipping and noise matter. `CandidateError` is
    closer to what attacks reach, since it looks at the updates themselves.

    Args:
        data: Name of the data set that candidates come from, as `data` in a spec.
        split: "test" or "train".
        candidates: Largest number N of candidates, with the private example among them.
        same_label: Whether only data with the label of the private example counts.
        epsilon: What the client promises for one example; by default, the noise multiplier of
            DP-SGD is used instead.
        delta: Probability with which that promise may fail.

    References:
        Balle et al., 2022 (balle2022reconstructing), reconstruction robustness; Hayes et al., 2023
        (hayes2023bounding), the blow-up of two Gaussians
    """

    name: ClassVar[str] = "reconstruction_robustness"

    epsilon: float | None = None
    delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon is not None and not self.epsilon >= 0) or not 0 <= self.delta < 1:
            raise InvalidValue(
                f"expected epsilon >= 0 and delta in [0, 1), got {self.epsilon!r} and "
                f"{self.delta!r}"
            )

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Bound the error by the promise and each example's candidates."""
        epsilon = self.epsilon
        sigma = read_noise_multiplier(client) if epsilon is None else 0.0

        def bound_success(kappa: float) -> float:
            if epsilon is None:
                return gaussian_blow_up(kappa, noise_multiplier=sigma)
            return min(1.0, math.exp(min(epsilon, 700.0)) * kappa + self.delta)

        errors, counts = list[float](), list[int]()
        for i in range(len(batch)):
            found = self.draw(task, batch, i, rng=rng.fork(i))
            errors.append(math.sqrt(integrate_failure(found, bound_success, power=2)))
            counts.append(len(found))
        kept = (
            f"one step of DP-SGD with noise multiplier {sigma:g}"
            if epsilon is None
            else f"the client keeps ({epsilon:g}, {self.delta:g})-DP for each example: not checked"
        )
        return bound_below(
            errors,
            EVERY_ATTACK,
            AMONG,
            f"the candidates are from {self.data}",
            OTHERS_KNOWN,
            kept,
            f"any attack names the right one of {min(counts)} candidates in at most "
            f"{100 * bound_success(1 / min(counts)):.3g} % of the cases",
        )
