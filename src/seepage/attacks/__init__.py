"""Observation to reconstruction. Nothing here can import scoring, or see the truth."""

from seepage.attacks.catalogue import ATTACKS
from seepage.attacks.recipes import analytic_fc, inverting_gradients

__all__ = ["ATTACKS", "analytic_fc", "inverting_gradients"]
