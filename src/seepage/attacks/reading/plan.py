"""What an adapted adversary is about to do: which attack, on the client simulated how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seepage.core import Attack, Observation, Protection, Task
from seepage.defenses import Chain, chain
from seepage.threats import Simulation


@dataclass(frozen=True, eq=False)
class Plan:
    """An attack and what it is given; each reading returns a better one.

    Args:
        attack: What attacks.
        observation: What was observed, whose simulation is of a client of ours.
    """

    attack: Attack
    observation: Observation

    @property
    def simulation(self) -> Simulation:
        """The simulation of the client."""
        simulation = self.observation.simulate
        assert isinstance(simulation, Simulation)
        return simulation

    @property
    def defense(self) -> Chain:
        """What is simulated of the defense."""
        return self.simulation.client.chain

    @property
    def unknowns(self) -> int:
        """How many numbers are sought; one input where the batch size is unknown."""
        size = self.observation.batch_size or 1
        return size * math.prod(self.observation.task.domain.shape)

    def after(self, link: Protection) -> Sequence[Protection]:
        """The links that come after one; what they hide cannot be read off."""
        places = [known is link for known in self.defense.links]
        return self.defense.links[places.index(True) + 1 :]

    def standing_in(self, link: Protection, stand_in: Protection) -> Plan:
        """The plan with something else simulated in the place of a link."""
        links = (stand_in if known is link else known for known in self.defense.links)
        client = replace(self.simulation.client, defense=chain(*links))
        return self._simulating(replace(self.simulation, client=client))

    def running(self, task: Task) -> Plan:
        """The plan with another network simulated."""
        return self._simulating(replace(self.simulation, task=task))

    def _simulating(self, simulation: Simulation) -> Plan:
        return replace(self, observation=replace(self.observation, simulate=simulation))
