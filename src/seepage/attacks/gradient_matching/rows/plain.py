"""The two ways that work for every client: one row after the other, or all by vmap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.func import vmap

from seepage.attacks.gradient_matching.rows.twice import cheap_twice
from seepage.core import Observation
from seepage.core.observation import Simulate
from seepage.threats import Simulation


@dataclass(frozen=True, eq=False)
class InTurn:
    """Simulate row after row."""

    observation: Observation

    @cached_property
    def simulate(self) -> Simulate:
        """The client's own code, on a card with layers that are cheaper there."""
        simulation = self.observation.simulate
        on_card = next(iter(self.observation.update)).is_cuda
        if on_card and isinstance(simulation, Simulation):
            return replace(simulation, task=cheap_twice(simulation.task))
        return simulation

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Stack the updates of all rows."""
        inputs = self.observation.task.domain.denormalise(normalised)
        updates = [self.simulate(x, y).tensors for x, y in zip(inputs, labels, strict=True)]
        if len(updates) == 1:
            return {name: tensor.unsqueeze(0) for name, tensor in updates[0].items()}
        return {name: torch.stack([u[name] for u in updates]) for name in updates[0]}


@dataclass(frozen=True, eq=False)
class Vectorised:
    """Simulate all rows by vmap, which turns weight gradients into grouped convolutions."""

    observation: Observation

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Vectorise the client's own code."""
        inputs = self.observation.task.domain.denormalise(normalised)

        def one(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return dict(self.observation.simulate(x, y).tensors)

        updates: dict[str, Tensor] = vmap(one)(inputs, labels)
        return updates
