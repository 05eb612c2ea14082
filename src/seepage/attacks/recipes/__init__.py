"""One function per paper, of those that search: the bibliography in code."""

from seepage.attacks.recipes.cosine import gradattack_strongest, inverting_gradients
from seepage.attacks.recipes.grad_inversion import grad_inversion
from seepage.attacks.recipes.squared_distance import dlg, idlg, learn_from_gradients
from seepage.attacks.recipes.tableak import tableak

__all__ = [
    "dlg",
    "grad_inversion",
    "gradattack_strongest",
    "idlg",
    "inverting_gradients",
    "learn_from_gradients",
    "tableak",
]
