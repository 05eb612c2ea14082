"""Is a received network honest? What a client can check before it computes an update."""

from seepage.exposure.server_checks import Finding, VettingVerdict
from seepage.exposure.vet import Concentration, concentration, vet

__all__ = ["Concentration", "Finding", "VettingVerdict", "concentration", "vet"]
