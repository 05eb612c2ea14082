"""Run the bundled quickstart and keep what it found: `python -m benchmarks.quickstart`.

The README quotes these numbers; tests/docs/test_docs.py checks that it quotes them right.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

import torch

from seepage.audit import environment, load_spec
from seepage.report import Row, summarise

RESULT = Path(__file__).parent / "results" / "quickstart.json"
SHOWN = ("ssim", "lpips")


def main() -> None:
    spec = load_spec(None, device="cpu")
    ran_on = machine()
    began = time.perf_counter()
    records = []
    for part in spec.parts:
        for outcome in part.audit.run(part.batches):
            records.append(outcome.record)
            print(f"{len(records)}: {outcome.record.attack} behind {outcome.record.defense}")
    result = {
        "command": "python -m benchmarks.quickstart",
        "spec": spec.title,
        "commit": commit(),
        "machine": ran_on,
        "cases": len(records),
        "seconds": round(time.perf_counter() - began, 1),
        "rows": [plain(row) for row in summarise(records)],
    }
    RESULT.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def commit() -> str:
    """The commit that ran, marked if the tree had changed, or "unreleased" before there is one."""
    asked = ("git", "describe", "--always", "--dirty", "--exclude=*")
    found = subprocess.run(asked, cwd=RESULT.parent, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else "unreleased"


def machine() -> dict[str, object]:
    """Enough to judge the times by; nothing that names the machine."""
    versions = environment("cpu")
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": versions["python"],
        "packages": versions["packages"],
    }


def plain(row: Row) -> dict[str, object]:
    """A row as data that JSON can hold, where infinity is the word "inf", as in records."""
    other = {name: row.other.get(name) for name in SHOWN}
    table = {**asdict(row), "other": other, "seconds": round(row.seconds, 1)}
    return {name: str(v) if v in (math.inf, -math.inf) else v for name, v in table.items()}


if __name__ == "__main__":
    main()
