"""Client to observation: the only door to the adversary."""

from seepage.threats.simulation import Simulation
from seepage.threats.threat import Threat

__all__ = ["Simulation", "Threat"]
