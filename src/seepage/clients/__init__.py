"""From data to an update: the gradient of a batch, or the change after local training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from seepage.clients._gradient import FedAvg, Gradient, batch_statistics
from seepage.clients._local import Local, SoftLocal
from seepage.core import LocalComputation
from seepage.core._client import Client, SharedUpdate

LOCALS: Mapping[str, Callable[..., LocalComputation]] = MappingProxyType(
    {"Gradient": Gradient, "FedAvg": FedAvg, "Local": Local}
)

__all__ = [
    "LOCALS",
    "Client",
    "FedAvg",
    "Gradient",
    "Local",
    "SharedUpdate",
    "SoftLocal",
    "batch_statistics",
]
