"""Run the bundled quickstart and keep what it found: `python -m benchmarks.quickstart`.

The tutorial quotes these numbers; tests/docs/test_docs.py checks that it quotes them right. The
time is that of all cases, with the controls.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict

from benchmarks.provenance import save
from seepage.audit import load_spec
from seepage.report import Row, summarise

SHOWN = ("ssim", "lpips")


def main() -> None:
    spec = load_spec(None, device="cpu")
    began = time.perf_counter()
    records = []
    for part in spec.parts:
        for outcome in part.audit.run(part.batches):
            records.append(outcome.record)
            print(f"{len(records)}: {outcome.record.attack} defense: {outcome.record.defense}")
    result = {
        "spec": spec.title,
        "cases": len(records),
        "seconds": round(time.perf_counter() - began, 1),
        "rows": [plain(row) for row in summarise([r for r in records if not r.control_kind])],
    }
    print(save("quickstart", "cpu", result))


def plain(row: Row) -> dict[str, object]:
    """A row as data that JSON can hold, where infinity is the word "inf", as in records."""
    other = {name: row.other.get(name) for name in SHOWN}
    table = {**asdict(row), "other": other, "seconds": round(row.seconds, 1)}
    return {name: str(v) if v in (math.inf, -math.inf) else v for name, v in table.items()}


if __name__ == "__main__":
    main()
