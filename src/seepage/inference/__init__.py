"""What an update tells of people without a reconstruction: membership, attributes, epsilon."""

from seepage.inference.detection import Detection
from seepage.inference.membership import Membership, membership

__all__ = ["Detection", "Membership", "membership"]
