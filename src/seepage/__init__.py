"""Seepage measures what a shared gradient gives away.

    private batch -> client -> defense -> shared update -> threat -> attack -> reconstruction
                  -> scoring

Everything below is imported when it is first used, so that `seepage --help` answers at once.

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

import sys

# `python -m seepage` looks for every module in the current folder first, which anybody may have
# filled: from here on, only if Seepage itself lies there. Nothing may be imported before this.
_by_name = sys.argv[:1] == ["-m"] and not sys.flags.safe_path
if _by_name and sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0] == "seepage":
    sys.path[:1] = [folder for folder in sys.path[:1] if f"{folder}/seepage" in __path__]

import importlib  # noqa: E402
import random  # noqa: E402
import threading  # noqa: E402

# Not from typing, whose import takes longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from seepage import attacks, audit, bounds, capture, data, domains, utility, zoo
    from seepage.attacks._certificate import certify
    from seepage.clients import Client, FedAvg, Gradient, Local
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
    from seepage.data._public_data import PublicData
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
    from seepage.inference import attributes, audit_epsilon, membership
    from seepage.rehearsal import auto
    from seepage.scoring import score
    from seepage.search import Decoder
    from seepage.step._audit_step import audit_step
    from seepage.step._training_steps import AuditSteps, RecordSteps
    from seepage.threats import Threat

__version__ = "0.3.0"

# Where each public name is defined; defenses are not listed: they are the rest.
_HOMES = {
    "seepage.attacks._certificate": ("certify",),
    "seepage.clients": ("Client", "FedAvg", "Gradient", "Local"),
    "seepage.core": (
        "Batch",
        "Certificate",
        "Observation",
        "Paired",
        "Reconstruction",
        "Rng",
        "Task",
        "Trace",
        "Update",
        "cross_entropy",
        "rng",
    ),
    "seepage.core.errors": ("SeepageError",),
    "seepage.exposure": ("vet",),
    "seepage.inference": ("attributes", "audit_epsilon", "membership"),
    "seepage.data._public_data": ("PublicData",),
    "seepage.rehearsal": ("auto",),
    "seepage.scoring": ("score",),
    "seepage.search": ("Decoder",),
    "seepage.step": ("audit_step",),
    "seepage.step._training_steps": ("AuditSteps", "RecordSteps"),
    "seepage.threats": ("Threat",),
}
_PACKAGES = ("attacks", "audit", "bounds", "capture", "data", "domains", "utility", "zoo")

__all__ = [
    "AddGaussian",
    "AddLaplace",
    "AuditSteps",
    "Batch",
    "Certificate",
    "Client",
    "Clip",
    "ClipEach",
    "Decoder",
    "Dropout",
    "FedAvg",
    "Gradient",
    "InstaHide",
    "Local",
    "Mean",
    "MixUp",
    "Oasis",
    "Observation",
    "Paired",
    "Precode",
    "Prune",
    "PublicData",
    "Quantize",
    "Reconstruction",
    "RecordSteps",
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
    "attributes",
    "audit",
    "audit_epsilon",
    "audit_step",
    "auto",
    "bounds",
    "capture",
    "certify",
    "chain",
    "cross_entropy",
    "data",
    "domains",
    "dp_sgd",
    "epsilon",
    "membership",
    "rng",
    "score",
    "utility",
    "vet",
    "zoo",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'seepage' has no attribute {name!r}")
    if name in _PACKAGES:
        return _import(f"seepage.{name}")
    # Everything else is a defense.
    home = next((home for home, names in _HOMES.items() if name in names), "seepage.defenses")
    value = getattr(_import(home), name)
    globals()[name] = value
    return value


def _import(name: str) -> object:
    """Import a module; some packages draw from `random` then, and the user's draws must stay."""
    state = random.getstate()
    try:
        return importlib.import_module(name)
    finally:
        # Other threads may have drawn meanwhile, and would draw the same again.
        if threading.active_count() == 1:
            random.setstate(state)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
