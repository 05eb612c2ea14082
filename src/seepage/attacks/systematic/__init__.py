"""Gradient matching with recovered features and an image prior."""

from seepage.attacks.systematic.attack import Systematic
from seepage.attacks.systematic.recipe import systematic, teacher_forced

__all__ = ["Systematic", "systematic", "teacher_forced"]
