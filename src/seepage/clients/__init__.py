"""Data to update: the gradient of a batch, or the distance moved by local steps."""

from seepage.clients.client import Client
from seepage.clients.fedavg import FedAvg
from seepage.clients.gradient import Gradient
from seepage.clients.statistics import batch_statistics

__all__ = ["Client", "FedAvg", "Gradient", "batch_statistics"]
