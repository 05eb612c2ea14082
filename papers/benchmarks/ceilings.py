"""Floors and ceilings together: `python -m benchmarks.ceilings --audit FOLDER`.

Runs `specs/bounds.toml` (or goes on with it) and keeps, for every network, defense and bound, what
theory allows the person in the middle, what the attack reached, and how many it came closer to.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import median

from benchmarks.provenance import save
from seepage.audit import load_audit
from seepage.cli import app
from seepage.report import contradictions, headrooms

SPEC = Path(__file__).parents[2] / "specs" / "bounds.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audit", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    app(["audit", str(SPEC), "--out", str(asked.audit), "--resume", "--plain", "--device", "cpu"],
        standalone_mode=False)  # fmt: skip
    found = load_audit(asked.audit)
    rooms = headrooms(found.results, found.bounds)
    rows = [described(room) for room in rooms]
    beaten = [contradiction.sentence for contradiction in contradictions(rooms)]
    # The folder is a path of one machine.
    at = sys.argv.index("--audit")
    sys.argv[at : at + 2] = []
    print(save("ceilings", "cpu", {"rows": rows, "contradictions": beaten}, asked.out))


def described(room) -> dict[str, object]:
    row = {
        "network": room.scene.model,
        "behind": room.scene.defense,
        "bound": room.bound,
        "reached_psnr": [round(attempt.psnr, 2) for attempt in room.tried],
        "median_reached_psnr": round(median(attempt.psnr for attempt in room.tried), 2),
        "says_nothing": list(room.remarks),
    }
    if room.people:
        ceilings = [person.ceiling for person in room.people]
        row |= {
            "ceiling_psnr": [round(c, 2) if math.isfinite(c) else str(c) for c in ceilings],
            "rmse_in_the_middle": float(f"{room.middle.rmse:.4g}"),
            "passed": sum(person.passed for person in room.people),
        }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
