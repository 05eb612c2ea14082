"""Every local computation by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from seepage.clients.fedavg import FedAvg
from seepage.clients.gradient import Gradient
from seepage.core import LocalComputation

LOCALS: Mapping[str, Callable[..., LocalComputation]] = MappingProxyType(
    {"Gradient": Gradient, "FedAvg": FedAvg}
)
