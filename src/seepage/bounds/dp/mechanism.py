"""The Gaussian mechanism inside a client, where there is one."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.clients import Client, Gradient
from seepage.defenses import AddGaussian, ClipEach, Mean


@dataclass(frozen=True)
class Mechanism:
    """One shared update of DP-SGD.

    Args:
        max_norm: C, to which each person's gradient is clipped.
        over: What the sum is divided by.
        std: Deviation of the noise on the mean.
    """

    max_norm: float
    over: int
    std: float

    @property
    def noise_multiplier(self) -> float:
        """sigma, the noise on the sum in units of the clipping norm."""
        return self.std * self.over / self.max_norm


def mechanism(client: Client) -> Mechanism | None:
    """The client as DP-SGD: each clipped, a mean over a fixed number, noise; None for any other.

    Example:
        >>> from seepage.defenses import dp_sgd
        >>> dp = dp_sgd(max_norm=2.0, noise_multiplier=1.5, batch_size=4)
        >>> mechanism(Client(Gradient(), dp)).noise_multiplier
        1.5
    """
    match client.chain.links:
        case (ClipEach(max_norm=norm), Mean(over=int(over)), AddGaussian(std=std)) if isinstance(
            client.local, Gradient
        ):
            return Mechanism(norm, over, std)
    return None
