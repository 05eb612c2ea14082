"""Attacks: from an observation to a reconstruction, without the truth or its scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from seepage.attacks._adaptive import adaptive
from seepage.attacks._dager import dager
from seepage.attacks._dlg import dlg, grad_inversion, idlg, learn_from_gradients
from seepage.attacks._feature_inversion import feature_inversion
from seepage.attacks._image_prior import PriorNetwork, through
from seepage.attacks._inverting_gradients import gradattack_strongest, inverting_gradients
from seepage.attacks._rounds import exact_rounds, stack_rounds
from seepage.attacks._systematic import systematic, teacher_forced
from seepage.attacks._tableak import tableak
from seepage.attacks._unmix import unmix
from seepage.attacks._unmixed import Unmixed, unmix_rounds
from seepage.attacks.exact_batch._exact_batch import exact_batch
from seepage.attacks.feature_maps._feature_maps import feature_maps
from seepage.attacks.feature_recovery._cocktail_party import cocktail_party
from seepage.attacks.feature_recovery._estimated_features import estimated_features
from seepage.attacks.feature_recovery._exact_features import exact_features
from seepage.attacks.feature_recovery._softmax_features import softmax_features
from seepage.attacks.feature_recovery._tensor_features import tensor_features
from seepage.attacks.labels._read_logits import ReadLogits
from seepage.attacks.linear_systems._analytic_fc import analytic_fc
from seepage.attacks.linear_systems._april import april
from seepage.attacks.linear_systems._hybrid import hybrid
from seepage.attacks.linear_systems._optimizer_rows import analytic_adam
from seepage.attacks.linear_systems._rgap import rgap
from seepage.attacks.malicious_server._identity_convolutions import identity_convolutions
from seepage.attacks.malicious_server._input_to_logits import input_to_logits
from seepage.attacks.malicious_server._planted_classifier import class_fishing, label_flip
from seepage.attacks.malicious_server._planting import first_layer_fc
from seepage.attacks.malicious_server._reversible_blocks import reversible_blocks
from seepage.attacks.malicious_server._robbing_the_fed import robbing_the_fed
from seepage.attacks.text._bag_of_words import bag_of_words
from seepage.attacks.text._next_words import next_words
from seepage.attacks.text._token_span import token_span
from seepage.core import Attack
from seepage.core._plugins import Catalogue

ATTACKS: Catalogue[Callable[..., Attack]] = Catalogue(
    "attack",
    "seepage.attacks",
    {
        recipe.__name__: recipe
        for recipe in (
            analytic_adam,
            analytic_fc,
            april,
            bag_of_words,
            class_fishing,
            cocktail_party,
            dager,
            dlg,
            exact_batch,
            exact_features,
            feature_inversion,
            feature_maps,
            first_layer_fc,
            grad_inversion,
            gradattack_strongest,
            hybrid,
            identity_convolutions,
            idlg,
            input_to_logits,
            inverting_gradients,
            label_flip,
            learn_from_gradients,
            next_words,
            reversible_blocks,
            rgap,
            robbing_the_fed,
            softmax_features,
            systematic,
            tableak,
            teacher_forced,
            tensor_features,
            token_span,
        )
    },
)

__all__ = [
    "ATTACKS",
    "PriorNetwork",
    "ReadLogits",
    "Unmixed",
    "adaptive",
    "analytic_adam",
    "analytic_fc",
    "april",
    "bag_of_words",
    "class_fishing",
    "cocktail_party",
    "dager",
    "dlg",
    "estimated_features",
    "exact_batch",
    "exact_features",
    "exact_rounds",
    "feature_inversion",
    "feature_maps",
    "first_layer_fc",
    "grad_inversion",
    "gradattack_strongest",
    "hybrid",
    "identity_convolutions",
    "idlg",
    "input_to_logits",
    "inverting_gradients",
    "label_flip",
    "learn_from_gradients",
    "next_words",
    "reversible_blocks",
    "rgap",
    "robbing_the_fed",
    "softmax_features",
    "stack_rounds",
    "systematic",
    "tableak",
    "teacher_forced",
    "tensor_features",
    "through",
    "token_span",
    "unmix",
    "unmix_rounds",
]


def __getattr__(name: str) -> object:
    if name == "likely_features":
        message = "likely_features is now estimated_features; the old name goes with 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return estimated_features
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
