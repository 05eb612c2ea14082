"""Attacks by a malicious server, which plants weights or layers in the network it sends."""

from seepage.attacks.malicious_server.class_fishing import ClassFishing, class_fishing
from seepage.attacks.malicious_server.identity_convolutions import (
    IdentityConvolutions,
    ReadPassed,
    identity_convolutions,
)
from seepage.attacks.malicious_server.label_flip import LabelFlip, label_flip
from seepage.attacks.malicious_server.planting import PlantedLayer, first_layer_fc
from seepage.attacks.malicious_server.robbing_the_fed import (
    Edges,
    Imprint,
    Law,
    Public,
    RobbingTheFed,
    robbing_the_fed,
)

__all__ = [
    "ClassFishing",
    "Edges",
    "IdentityConvolutions",
    "Imprint",
    "LabelFlip",
    "Law",
    "PlantedLayer",
    "Public",
    "ReadPassed",
    "RobbingTheFed",
    "class_fishing",
    "first_layer_fc",
    "identity_convolutions",
    "label_flip",
    "robbing_the_fed",
]
