"""The adversary who knows the defense, and reads off the update what the client did with it."""

from seepage.attacks.adaptive.attack import Adaptive, adaptive
from seepage.attacks.adaptive.readings import READINGS, adapted
from seepage.attacks.adaptive.unadapted import unadapted
from seepage.attacks.reading.plan import Plan

__all__ = ["READINGS", "Adaptive", "Plan", "adapted", "adaptive", "unadapted"]
