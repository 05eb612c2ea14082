"""Observation to reconstruction. Nothing here can import scoring, or see the truth."""

from seepage.attacks.adaptive import adaptive
from seepage.attacks.catalogue import ATTACKS
from seepage.attacks.computed import (
    analytic_fc,
    dager,
    exact_batch,
    hybrid,
    rgap,
)
from seepage.attacks.feature_recovery import (
    cocktail_party,
    exact_features,
    likely_features,
    softmax_features,
    tensor_features,
)
from seepage.attacks.image_prior import PriorNetwork, through
from seepage.attacks.labels import ReadLogits
from seepage.attacks.malicious_server import (
    class_fishing,
    first_layer_fc,
    identity_convolutions,
    label_flip,
    robbing_the_fed,
)
from seepage.attacks.recipes import (
    dlg,
    grad_inversion,
    gradattack_strongest,
    idlg,
    inverting_gradients,
    learn_from_gradients,
    tableak,
)
from seepage.attacks.systematic import systematic, teacher_forced
from seepage.attacks.unmixing import Unmixed, unmix

__all__ = [
    "ATTACKS",
    "PriorNetwork",
    "ReadLogits",
    "Unmixed",
    "adaptive",
    "analytic_fc",
    "class_fishing",
    "cocktail_party",
    "dager",
    "dlg",
    "exact_batch",
    "exact_features",
    "first_layer_fc",
    "grad_inversion",
    "gradattack_strongest",
    "hybrid",
    "identity_convolutions",
    "idlg",
    "inverting_gradients",
    "label_flip",
    "learn_from_gradients",
    "likely_features",
    "rgap",
    "robbing_the_fed",
    "softmax_features",
    "systematic",
    "tableak",
    "teacher_forced",
    "tensor_features",
    "through",
    "unmix",
]
