"""Client to observation: the only door to the adversary."""

from seepage.threats.threat import Simulation, Threat

__all__ = ["Simulation", "Threat"]
