"""Check a received network before computing an update on it: is it honest, what does it expose?"""

from seepage.exposure.vet import Concentration, Finding, VettingVerdict, concentration, vet

__all__ = ["Concentration", "Finding", "VettingVerdict", "concentration", "vet"]
