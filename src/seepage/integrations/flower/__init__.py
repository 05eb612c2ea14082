"""Flower: record what crosses the wire, and put any defense on it.

app = ClientApp(mods=[capture_mod(recorder), as_mod(sp.Prune(0.9))])   # at the client
strategy = recorded(FedAvg(), recorder)                                # at the server
"""

from seepage.integrations.flower.mods import as_mod, capture_mod, masked_mod
from seepage.integrations.flower.recorder import Recorder, recorded

__all__ = ["Recorder", "as_mod", "capture_mod", "masked_mod", "recorded"]
