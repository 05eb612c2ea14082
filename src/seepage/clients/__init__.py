"""Data to update: the gradient of a batch, or the distance moved by local steps."""

from seepage.clients.catalogue import LOCALS
from seepage.clients.client import Client, Shared
from seepage.clients.fedavg import FedAvg
from seepage.clients.gradient import Gradient
from seepage.clients.statistics import batch_statistics

__all__ = ["LOCALS", "Client", "FedAvg", "Gradient", "Shared", "batch_statistics"]
