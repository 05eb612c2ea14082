"""What theory allows: numbers that no attack, or some attack, gets past."""

from seepage.bounds import dp, risk
from seepage.bounds.catalogue import BOUNDS
from seepage.bounds.channel import Channel, channel
from seepage.bounds.cramer_rao import CramerRao, CramerRaoRelaxed
from seepage.bounds.dp import RenyiError
from seepage.bounds.equations import EquationCount, RankDeficiency
from seepage.bounds.identifiability import Determined, Identifiability
from seepage.bounds.information import Information, information
from seepage.bounds.inverse import InverseTrace, Inversion
from seepage.bounds.protocol import Bound
from seepage.bounds.table_1 import pruned_share, table_1
from seepage.bounds.two_layer import Orders, two_layer_orders
from seepage.bounds.van_trees import VanTrees

__all__ = [
    "BOUNDS",
    "Bound",
    "Channel",
    "CramerRao",
    "CramerRaoRelaxed",
    "Determined",
    "EquationCount",
    "Identifiability",
    "Information",
    "InverseTrace",
    "Inversion",
    "Orders",
    "RankDeficiency",
    "RenyiError",
    "VanTrees",
    "channel",
    "dp",
    "information",
    "pruned_share",
    "risk",
    "table_1",
    "two_layer_orders",
]
