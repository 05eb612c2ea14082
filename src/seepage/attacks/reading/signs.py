"""What signs tell: the direction of the gradient, not how large any tensor of it was."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.plan import Plan
from seepage.core import Rng, Update
from seepage.defenses import Sign
from seepage.defenses.link import OnAggregate


@dataclass(frozen=True, repr=False)
class UnitScale(OnAggregate):
    """Divide every tensor by its root mean square, which for a tensor of signs is 1."""

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Divide; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Divide, by a number that is not differentiated."""
        return update.map(_scaled)


def read_signs(link: Sign, plan: Plan) -> Plan:
    """Match the gradient itself to the signs, tensor by tensor on the same scale.

    Many inputs have the right signs. Of those a search finds by simulating them, smoothed or with
    a made-up slope, fewer resemble the truth than of those whose gradient lies along the signs.
    """
    return plan.standing_in(link, UnitScale())


def _scaled(tensor: Tensor) -> Tensor:
    size = tensor.detach().square().mean().sqrt()
    return tensor / size.clamp_min(torch.finfo(tensor.dtype).tiny)
