"""Seepage measures what a shared gradient gives away.

    private batch -> client -> defense -> shared update -> threat -> attack -> reconstruction
                  -> scoring

Example:
    >>> import seepage as sp
    >>> batch = sp.data.bundled("photos", size=1)
    >>> task = sp.zoo.mlp(hidden=(32,), classes=10)
    >>> client = sp.Client(sp.Gradient())
    >>> seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    >>> guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    >>> bool(sp.score(guess, batch)["psnr"].min() > 60)
    True
"""

import typing

from seepage import attacks, bounds, capture, data, domains, utility, zoo
from seepage.attacks.certificate import certify
from seepage.clients import Client, FedAvg, Gradient
from seepage.core import (
    Batch,
    Certificate,
    Observation,
    Paired,
    Reconstruction,
    Rng,
    Task,
    Trace,
    Update,
    cross_entropy,
    rng,
)
from seepage.core.errors import SeepageError
from seepage.core.version import __version__ as __version__
from seepage.defenses import (
    AddGaussian,
    AddLaplace,
    Clip,
    ClipEach,
    Dropout,
    InstaHide,
    Mean,
    MixUp,
    Oasis,
    Precode,
    Prune,
    Quantize,
    SecureAggregation,
    Sign,
    Soteria,
    TopK,
    chain,
    dp_sgd,
    epsilon,
)
from seepage.exposure import vet
from seepage.scoring import score
from seepage.threats import Threat

if typing.TYPE_CHECKING:
    from seepage.step import audit_step

__all__ = [
    "AddGaussian",
    "AddLaplace",
    "Batch",
    "Certificate",
    "Client",
    "Clip",
    "ClipEach",
    "Dropout",
    "FedAvg",
    "Gradient",
    "InstaHide",
    "Mean",
    "MixUp",
    "Oasis",
    "Observation",
    "Paired",
    "Precode",
    "Prune",
    "Quantize",
    "Reconstruction",
    "Rng",
    "SecureAggregation",
    "SeepageError",
    "Sign",
    "Soteria",
    "Task",
    "Threat",
    "TopK",
    "Trace",
    "Update",
    "attacks",
    "audit_step",
    "bounds",
    "capture",
    "certify",
    "chain",
    "cross_entropy",
    "data",
    "domains",
    "dp_sgd",
    "epsilon",
    "rng",
    "score",
    "utility",
    "vet",
    "zoo",
]


def __getattr__(name: str) -> object:
    """Import what needs reports when it is first asked for, so that the rest stays light."""
    if name != "audit_step":
        raise AttributeError(f"module 'seepage' has no attribute {name!r}")
    from seepage.step import audit_step

    globals()[name] = audit_step
    return audit_step
