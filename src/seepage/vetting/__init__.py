"""Is a received network honest? What a client can check before it computes an update."""

from seepage.vetting.dsnr import Concentration, concentration
from seepage.vetting.verdict import Finding, Verdict
from seepage.vetting.vet import vet

__all__ = ["Concentration", "Finding", "Verdict", "concentration", "vet"]
