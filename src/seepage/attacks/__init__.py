"""Observation to reconstruction. Nothing here can import scoring, or see the truth."""

from seepage.attacks.adaptive import adaptive
from seepage.attacks.catalogue import ATTACKS
from seepage.attacks.feature_recovery import exact_features, tensor_features
from seepage.attacks.recipes import (
    analytic_fc,
    dlg,
    exact_batch,
    grad_inversion,
    gradattack_strongest,
    hybrid,
    idlg,
    inverting_gradients,
    learn_from_gradients,
    rgap,
)
from seepage.attacks.unmixing import unmix

__all__ = [
    "ATTACKS",
    "adaptive",
    "analytic_fc",
    "dlg",
    "exact_batch",
    "exact_features",
    "grad_inversion",
    "gradattack_strongest",
    "hybrid",
    "idlg",
    "inverting_gradients",
    "learn_from_gradients",
    "rgap",
    "tensor_features",
    "unmix",
]
