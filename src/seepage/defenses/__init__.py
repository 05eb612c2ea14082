"""Defenses: what a client changes before it computes and before it shares."""

from __future__ import annotations

from collections.abc import Callable

from seepage.core import Protection
from seepage.core._chain import Chain, chain
from seepage.core._plugins import Catalogue
from seepage.defenses._aggregation import SecureAggregation
from seepage.defenses._clip import (
    AddGaussian,
    AddLaplace,
    Clip,
    ClipEach,
    Mean,
    dp_sgd,
    epsilon,
    gaussian_epsilon,
)
from seepage.defenses._compress import Dropout, Prune, Quantize, Sign, TopK
from seepage.defenses._mixing import InstaHide, MixUp, Oasis, mix
from seepage.defenses._representation import Precode, Soteria

_ALL: tuple[Callable[..., Protection], ...] = (
    *(AddGaussian, AddLaplace, Clip, ClipEach, Dropout, InstaHide, Mean, MixUp, Oasis, Precode),
    *(Prune, Quantize, SecureAggregation, Sign, Soteria, TopK, dp_sgd),
)
DEFENSES: Catalogue[Callable[..., Protection]] = Catalogue(
    "defense", "seepage.defenses", {defense.__name__: defense for defense in _ALL}
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
