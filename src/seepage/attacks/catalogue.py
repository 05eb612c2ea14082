"""Every recipe by name."""

from __future__ import annotations

from collections.abc import Callable

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
    softmax_features,
    tensor_features,
)
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
from seepage.core import Attack
from seepage.core.plugins import Catalogue

ATTACKS: Catalogue[Callable[..., Attack]] = Catalogue(
    "attack",
    "seepage.attacks",
    {
        recipe.__name__: recipe
        for recipe in (
            analytic_fc,
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
            inverting_gradients,
            label_flip,
            learn_from_gradients,
            rgap,
            robbing_the_fed,
            softmax_features,
            systematic,
            tableak,
            teacher_forced,
            tensor_features,
        )
    },
)
