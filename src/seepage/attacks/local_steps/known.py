"""What the adversary knows of the client."""

from __future__ import annotations

from seepage.core import Observation
from seepage.core.errors import NotApplicable
from seepage.threats import Simulation


def known_simulation(observation: Observation) -> Simulation:
    """The adversary's simulation, with the client as far as it is known, or `NotApplicable`."""
    simulation = observation.simulate
    if not isinstance(simulation, Simulation):
        raise NotApplicable(
            f"expected a simulation of a Seepage client, got {type(simulation).__name__}; "
            "attack it with its own simulation instead"
        )
    return simulation
