"""Every defense by name."""

from __future__ import annotations

from collections.abc import Callable

from seepage.core import Protection
from seepage.core.plugins import Catalogue
from seepage.defenses.aggregation import SecureAggregation
from seepage.defenses.clip import Clip, ClipEach, Mean
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.dropout import Dropout
from seepage.defenses.mixing import InstaHide, MixUp
from seepage.defenses.noise import AddGaussian, AddLaplace
from seepage.defenses.oasis import Oasis
from seepage.defenses.precode import Precode
from seepage.defenses.prune import Prune
from seepage.defenses.quantize import Quantize, Sign
from seepage.defenses.soteria import Soteria
from seepage.defenses.topk import TopK

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
