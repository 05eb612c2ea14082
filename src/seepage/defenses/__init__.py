"""Update to update: what a client does before it shares, composed by `chain`."""

from seepage.defenses.catalogue import DEFENSES
from seepage.defenses.chain import Chain, chain
from seepage.defenses.clip import Clip, ClipEach, Mean
from seepage.defenses.dropout import Dropout
from seepage.defenses.noise import AddGaussian, AddLaplace
from seepage.defenses.prune import Prune
from seepage.defenses.quantize import Quantize, Sign

__all__ = [
    "DEFENSES",
    "AddGaussian",
    "AddLaplace",
    "Chain",
    "Clip",
    "ClipEach",
    "Dropout",
    "Mean",
    "Prune",
    "Quantize",
    "Sign",
    "chain",
]
