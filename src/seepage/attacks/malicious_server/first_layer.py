"""A fully connected layer before everything else."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from seepage.attacks.malicious_server.planting import behind
from seepage.core import Attack, Observation, Reconstruction, Rng, Task


@dataclass(frozen=True, kw_only=True)
class FirstLayer:
    """Places a fully connected layer with a bias before the network, which gives its input away.

    The layer is the identity, so the network computes what it computed before.

    Args:
        attack: What attacks the update.

    References:
        Geiping et al., 2020, Sec. 4.3 and Proposition 1 (geiping2020inverting)
    """

    attack: Attack

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network behind an identity; nothing is random."""
        shape = tuple(task.domain.shape)
        entries = math.prod(shape)
        first = nn.Linear(entries, entries)
        with torch.no_grad():
            first.weight.copy_(torch.eye(entries))
            first.bias.zero_()
        parts = (("flatten", nn.Flatten()), ("first", first), ("shape", nn.Unflatten(1, shape)))
        return behind(
            task,
            lambda network: nn.Sequential(OrderedDict([*parts, ("network", network)])),
            note="behind a fully connected layer",
        )

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack the update as it is."""
        return self.attack(observation, rng=rng)
