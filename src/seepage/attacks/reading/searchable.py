"""What a search simulates of a defense whose own simulation would mislead it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from seepage.attacks.reading.entries import read_survivors
from seepage.attacks.reading.plan import Plan
from seepage.attacks.reading.signs import read_signs
from seepage.core import Attack, Observation
from seepage.defenses import Prune, Sign, TopK
from seepage.threats import Simulation

MISLEADING: Mapping[type, Callable[[Any, Plan], Plan]] = MappingProxyType(
    {Prune: read_survivors, Sign: read_signs, TopK: read_survivors}
)
"""By class of defense, what is read off the update instead."""


def searchable(attack: Attack, observation: Observation) -> Observation:
    """The observation with a simulation whose slope leads to the truth.

    Pruning a candidate's update leaves other entries than the client's did until the candidate is
    nearly right. Those it removes have no slope, and those it keeps in vain count in full: a search
    that knew of the pruning found less than one that did not. The update shows which entries
    survived, so those are compared, and the others must only be small enough to have been removed.
    At the truth this gives the observed update, as pruning does. Signs are alike.

    Args:
        attack: What searches.
        observation: What was observed.
    """
    plan = Plan(attack, observation)
    if not isinstance(observation.simulate, Simulation):
        return observation
    for link in reversed(plan.defense.links):
        if type(link) in MISLEADING:
            plan = MISLEADING[type(link)](link, plan)
    return plan.observation
