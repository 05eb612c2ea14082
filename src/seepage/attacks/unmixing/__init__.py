"""From encodings back to private inputs, where the mixing is known."""

from seepage.attacks.unmixing.unmix import unmix
from seepage.attacks.unmixing.unmixed import Unmixed

__all__ = ["Unmixed", "unmix"]
