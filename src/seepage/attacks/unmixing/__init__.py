"""From encodings back to private inputs, where the mixing is known."""

from seepage.attacks.unmixing.unmix import unmix

__all__ = ["unmix"]
