"""Attacks by a server that cheats: what it sends is not what it trains."""

from seepage.attacks.malicious_server.class_fishing import ClassFishing
from seepage.attacks.malicious_server.edges import Edges, Law, Public
from seepage.attacks.malicious_server.first_layer import FirstLayer
from seepage.attacks.malicious_server.identity import IdentityConvolutions
from seepage.attacks.malicious_server.imprint import Imprint
from seepage.attacks.malicious_server.label_flip import LabelFlip
from seepage.attacks.malicious_server.passing import ReadPassed
from seepage.attacks.malicious_server.recipes import (
    class_fishing,
    first_layer_fc,
    identity_convolutions,
    label_flip,
    robbing_the_fed,
)
from seepage.attacks.malicious_server.robbing import RobbingTheFed

__all__ = [
    "ClassFishing",
    "Edges",
    "FirstLayer",
    "IdentityConvolutions",
    "Imprint",
    "LabelFlip",
    "Law",
    "Public",
    "ReadPassed",
    "RobbingTheFed",
    "class_fishing",
    "first_layer_fc",
    "identity_convolutions",
    "label_flip",
    "robbing_the_fed",
]
