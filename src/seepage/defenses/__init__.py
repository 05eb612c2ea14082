"""What a client does before it computes and before it shares, composed by `chain`."""

from seepage.defenses.accounting import epsilon, gaussian_epsilon
from seepage.defenses.aggregation import SecureAggregation
from seepage.defenses.catalogue import DEFENSES
from seepage.defenses.chain import Chain, chain
from seepage.defenses.clip import Clip, ClipEach, Mean
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.dropout import Dropout
from seepage.defenses.mixing import InstaHide, MixUp, mix
from seepage.defenses.noise import AddGaussian, AddLaplace
from seepage.defenses.oasis import Oasis
from seepage.defenses.precode import Precode
from seepage.defenses.prune import Prune
from seepage.defenses.quantize import Quantize, Sign
from seepage.defenses.soteria import Soteria
from seepage.defenses.topk import TopK

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
