"""Is a received network honest? What a client can check before it computes an update."""

from seepage.exposure.vet import Concentration, Finding, VettingVerdict, concentration, vet

__all__ = ["Concentration", "Finding", "VettingVerdict", "concentration", "vet"]
