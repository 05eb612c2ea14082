"""From data to an update: the gradient of a batch, or the change after local steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from seepage.clients._gradient import FedAvg, Gradient, batch_statistics
from seepage.core import LocalComputation
from seepage.core._client import Client, SharedUpdate

LOCALS: Mapping[str, Callable[..., LocalComputation]] = MappingProxyType(
    {"Gradient": Gradient, "FedAvg": FedAvg}
)

__all__ = ["LOCALS", "Client", "FedAvg", "Gradient", "SharedUpdate", "batch_statistics"]
