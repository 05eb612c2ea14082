"""Every defense by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from seepage.core import Defense
from seepage.defenses.clip import Clip, ClipEach, Mean
from seepage.defenses.dropout import Dropout
from seepage.defenses.noise import AddGaussian, AddLaplace
from seepage.defenses.prune import Prune
from seepage.defenses.quantize import Quantize, Sign

DEFENSES: Mapping[str, type[Defense]] = MappingProxyType(
    {
        defense.__name__: defense
        for defense in (
            AddGaussian,
            AddLaplace,
            Clip,
            ClipEach,
            Dropout,
            Mean,
            Prune,
            Quantize,
            Sign,
        )
    }
)
