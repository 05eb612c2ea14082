"""From encodings back to private inputs, where the mixing is known."""

from seepage.attacks.unmixing.unmix import Unmix, unmix

__all__ = ["Unmix", "unmix"]
