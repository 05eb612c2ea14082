"""Several rounds against one person, on ResNet-20; see `benchmarks.rounds`."""

from __future__ import annotations

from benchmarks.provenance import record
from benchmarks.rounds import Setting, measure

SETTING = Setting("ResNet-20", 8, 0.0, 40, 80)

if __name__ == "__main__":
    record("rounds-resnet20", __doc__, lambda seed: {"rows": measure(SETTING, seed)})
