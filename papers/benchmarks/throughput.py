"""Two workers against one on a 40-case audit: `python -m benchmarks.throughput`.

Run it on a machine with two idle cores. Both audits compute with one thread per process, so that
only the number of processes differs, and their records must be the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.provenance import parse_options, save
from seepage.audit import Record, load_audit

WANTED = 1.7

SPEC = """
title = "Throughput"
metrics = ["psnr"]
seeds = [0, 1, 2, 3, 4]
[[scenario]]
data = {{ name = "photos", people = 4, start = 0 }}
models = {{ name = "cnn3-v3" }}
threats = {{ knows_labels = true }}
attacks = {{ name = "inverting_gradients", steps = {steps}, restarts = 1, tv = 1e-4 }}
defenses = [[], {{ name = "Prune", ratio = 0.9 }}]
"""


def main() -> None:
    options = parse_options(__doc__, steps=300)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "spec.toml").write_text(SPEC.format(steps=options.steps))
        seconds = {workers: run(place, workers) for workers in (1, 2)}
        one, two = (records(place / str(workers)) for workers in (1, 2))
    result = {
        "cases": len(one),
        "steps": options.steps,
        "seconds_one_worker": round(seconds[1], 1),
        "seconds_two_workers": round(seconds[2], 1),
        "speedup": round(seconds[1] / seconds[2], 2),
        "wanted": WANTED,
        "same_records": one == two,
    }
    assert one == two, "the records differ"
    print(result)
    print(save("throughput", "cpu", result, options.out))


def run(place: Path, workers: int) -> float:
    """Seconds of a whole command, imports and all."""
    began = time.perf_counter()
    subprocess.run(
        [
            *(sys.executable, "-c", "from seepage.cli import main; main()"),
            *("audit", "spec.toml", "--out", str(workers), "--workers", str(workers), "--quiet"),
        ],
        cwd=place,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        },
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def records(out: Path) -> list[Record]:
    """All but the time they took."""
    return [
        replace(r, effort={k: v for k, v in r.effort.items() if k != "seconds"})
        for r in load_audit(out).records
    ]


if __name__ == "__main__":
    main()
