"""Check a received network before computing an update on it: is it honest, what does it expose?"""

from seepage.exposure._gradient_probes import Concentration, concentration
from seepage.exposure._vet import Finding, VettingVerdict, vet

__all__ = ["Concentration", "Finding", "VettingVerdict", "concentration", "vet"]
