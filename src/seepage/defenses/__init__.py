"""What a client does before it computes and before it shares, composed by `chain`."""

from __future__ import annotations

from collections.abc import Callable

from seepage.core import Protection
from seepage.core.plugins import Catalogue
from seepage.defenses.aggregation import SecureAggregation
from seepage.defenses.chain import Chain, chain
from seepage.defenses.clip import AddGaussian, AddLaplace, Clip, ClipEach, Mean
from seepage.defenses.dp_sgd import dp_sgd, epsilon, gaussian_epsilon
from seepage.defenses.mixing import InstaHide, MixUp, mix
from seepage.defenses.oasis import Oasis
from seepage.defenses.precode import Precode
from seepage.defenses.quantize import Quantize, Sign
from seepage.defenses.soteria import Soteria
from seepage.defenses.sparsify import Dropout, Prune, TopK

DEFENSES: Catalogue[Callable[..., Protection]] = Catalogue(
    "defense",
    "seepage.defenses",
    {
        "AddGaussian": AddGaussian,
        "AddLaplace": AddLaplace,
        "Clip": Clip,
        "ClipEach": ClipEach,
        "Dropout": Dropout,
        "InstaHide": InstaHide,
        "Mean": Mean,
        "MixUp": MixUp,
        "Oasis": Oasis,
        "Precode": Precode,
        "Prune": Prune,
        "Quantize": Quantize,
        "SecureAggregation": SecureAggregation,
        "Sign": Sign,
        "Soteria": Soteria,
        "TopK": TopK,
        "dp_sgd": dp_sgd,
    },
)

__all__ = [
    "DEFENSES",
    "AddGaussian",
    "AddLaplace",
    "Chain",
    "Clip",
    "ClipEach",
    "Dropout",
    "InstaHide",
    "Mean",
    "MixUp",
    "Oasis",
    "Precode",
    "Prune",
    "Quantize",
    "SecureAggregation",
    "Sign",
    "Soteria",
    "TopK",
    "chain",
    "dp_sgd",
    "epsilon",
    "gaussian_epsilon",
    "mix",
]
