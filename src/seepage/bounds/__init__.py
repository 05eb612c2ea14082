"""What theory allows: numbers that no attack, or some attack, gets past."""

from seepage.bounds.dp import FisherLeakage, RenyiError
from seepage.bounds.protocol import Bound

__all__ = ["Bound", "FisherLeakage", "RenyiError"]
