"""Threats: what the adversary knows, and the observation that they get of a client."""

from seepage.threats._threat import Simulation, Threat

__all__ = ["Simulation", "Threat"]
