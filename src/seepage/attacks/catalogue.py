"""Every recipe by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from seepage.attacks.feature_recovery import cocktail_party
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
from seepage.attacks.systematic import systematic
from seepage.core import Attack

ATTACKS: Mapping[str, Callable[..., Attack]] = MappingProxyType(
    {
        recipe.__name__: recipe
        for recipe in (
            analytic_fc,
            cocktail_party,
            dlg,
            grad_inversion,
            exact_batch,
            gradattack_strongest,
            idlg,
            hybrid,
            inverting_gradients,
            learn_from_gradients,
            rgap,
            systematic,
        )
    }
)
