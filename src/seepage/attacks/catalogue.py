"""Every recipe by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

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
from seepage.core import Attack

ATTACKS: Mapping[str, Callable[..., Attack]] = MappingProxyType(
    {
        recipe.__name__: recipe
        for recipe in (
            analytic_fc,
            dlg,
            grad_inversion,
            exact_batch,
            exact_features,
            gradattack_strongest,
            idlg,
            hybrid,
            inverting_gradients,
            learn_from_gradients,
            rgap,
            tensor_features,
        )
    }
)
