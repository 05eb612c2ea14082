"""For every defense, what an adversary who knows it reads off the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from seepage.attacks.adaptive.code import read_code
from seepage.attacks.adaptive.columns import read_columns
from seepage.attacks.adaptive.mixtures import read_mixtures
from seepage.attacks.adaptive.noise import read_noise
from seepage.attacks.reading.entries import read_survivors
from seepage.attacks.reading.plan import Plan
from seepage.attacks.reading.signs import read_signs
from seepage.core import Attack, Observation
from seepage.defenses import (
    AddGaussian,
    AddLaplace,
    Dropout,
    InstaHide,
    Precode,
    Prune,
    Sign,
    Soteria,
    TopK,
)
from seepage.threats import Simulation

READINGS: Mapping[type, Callable[[Any, Plan], Plan]] = MappingProxyType(
    {
        AddGaussian: read_noise,
        AddLaplace: read_noise,
        Dropout: read_survivors,
        InstaHide: read_mixtures,
        Precode: read_code,
        Prune: read_survivors,
        Sign: read_signs,
        Soteria: read_columns,
        TopK: read_survivors,
    }
)
"""By class of defense. Of one that is not here there is nothing to read: what it does is already
simulated, as of clipping, of MixUp's known mixing and of sums over clients, or simulating it
brought back less, as of rounding and of OASIS's rotations."""


def adapted(attack: Attack, observation: Observation) -> Plan:
    """The plan of an adversary who has read off the update all that its defense lets through."""
    plan = Plan(attack, observation)
    if not isinstance(observation.simulate, Simulation):
        return plan
    # From the last link on: what it hid must be known before one can say what an earlier one did.
    for link in reversed(plan.defense.links):
        if type(link) in READINGS:
            plan = READINGS[type(link)](link, plan)
    return plan
