"""Attacks: from an observation to a reconstruction, without the truth or its scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from seepage.attacks.adaptive import adaptive
from seepage.attacks.dager import dager
from seepage.attacks.dlg import dlg, grad_inversion, idlg, learn_from_gradients
from seepage.attacks.exact_batch.exact_batch import exact_batch
from seepage.attacks.feature_recovery.cocktail_party import cocktail_party
from seepage.attacks.feature_recovery.estimated_features import estimated_features
from seepage.attacks.feature_recovery.exact_features import exact_features
from seepage.attacks.feature_recovery.softmax_features import softmax_features
from seepage.attacks.feature_recovery.tensor_features import tensor_features
from seepage.attacks.image_prior import PriorNetwork, through
from seepage.attacks.inverting_gradients import gradattack_strongest, inverting_gradients
from seepage.attacks.labels.read_logits import ReadLogits
from seepage.attacks.linear_systems.analytic_fc import analytic_fc
from seepage.attacks.linear_systems.april import april
from seepage.attacks.linear_systems.hybrid import hybrid
from seepage.attacks.linear_systems.rgap import rgap
from seepage.attacks.malicious_server.identity_convolutions import identity_convolutions
from seepage.attacks.malicious_server.input_to_logits import input_to_logits
from seepage.attacks.malicious_server.planted_classifier import class_fishing, label_flip
from seepage.attacks.malicious_server.planting import first_layer_fc
from seepage.attacks.malicious_server.reversible_blocks import reversible_blocks
from seepage.attacks.malicious_server.robbing_the_fed import robbing_the_fed
from seepage.attacks.rounds import exact_rounds, stack_rounds
from seepage.attacks.systematic import systematic, teacher_forced
from seepage.attacks.tableak import tableak
from seepage.attacks.text.bag_of_words import bag_of_words
from seepage.attacks.text.next_words import next_words
from seepage.attacks.text.token_span import token_span
from seepage.attacks.unmix import unmix
from seepage.attacks.unmixed import Unmixed, unmix_rounds
from seepage.core import Attack
from seepage.core.plugins import Catalogue

ATTACKS: Catalogue[Callable[..., Attack]] = Catalogue(
    "attack",
    "seepage.attacks",
    {
        recipe.__name__: recipe
        for recipe in (
            analytic_fc,
            april,
            bag_of_words,
            class_fishing,
            cocktail_party,
            dager,
            dlg,
            exact_batch,
            exact_features,
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
