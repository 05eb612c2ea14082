"""What the papers' attacks bring back when they search longer, on the cells of their tables.

    python -m benchmarks.search_length 000-fig4 [--lengths 1000 3000] --device cuda

A table at scale `small` searches less than its paper. Here one of its cells is attacked at several
lengths, with everything else as in the table, and by an attack of ours as well. So it shows whether
an image that does not come back would have with the paper's effort. What the record has already is
not made again; each line tells its commit. Needs SEEPAGE_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import seepage as sp
from benchmarks.provenance import RESULTS, commit, save
from seepage_papers.place import Place
from seepage_papers.prepare import prepared
from seepage_papers.reading import load_table
from seepage_papers.run import SPEC_KEYS

# Row and column of the cell, and how many people of it are attacked.
CELLS = {
    "000-fig4": ("1e-2", "own batch", 4),
    "000-fig8": ("GradPrune 0.99", "", 4),
    "001-table7": ("B = 4", "no defense", 4),
    "003-fig4d": ("ResNet-18", "", 4),
    "003-fig5": ("ResNet20-4", "", 4),
    "003-fig7": ("ResNet-18, untrained", "", 2),
}
LENGTHS = (1000, 3000, 10_000)
METRICS = ("psnr", "ssim")
FORCED: dict[str, Any] = {"name": "teacher_forced"}
LONG_STEPS: dict[str, Any] = {
    "name": "inverting_gradients",
    "schedule": "cosine",
    "step_size": 0.2,
    "spread": 0.1,
    "tv": [1e-1, 1e-5],
}
# Laid over the attack of Liu et al.: weights that sum to one, and features without an error.
TOLD: dict[str, Any] = {
    "normalised": True,
    "step_size": 3e-3,
    "features": {"name": "exact_features"},
}


def attacks(
    published: dict[str, Any], lengths: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each attack that is tried, shortest first; ours depends on whether features can be told."""
    inverted = published["name"] == "inverting_gradients"
    for steps in lengths:
        if inverted:
            yield f"longer steps, {steps} steps", {**LONG_STEPS, "steps": steps}
        elif steps == LENGTHS[0]:
            yield f"ours, {steps} steps", {**FORCED, "steps": steps}
        if published["name"] == "systematic" and steps < LENGTHS[-1]:
            yield f"exact features, {steps} steps", {**published, **TOLD, "steps": steps}
        yield f"as published, {steps} steps", {**published, "steps": steps}


def measure(name: str, lengths: Sequence[int], device: str, out: Path | None) -> None:
    """Attack one cell at every length and keep what there is after each."""
    row, column, people = CELLS[name]
    [cell] = [c for c in load_table(name).cells("small") if c.labels == (row, column)]
    scenario = prepared(cell.scenario, Place(device=device))
    scenario["data"]["people"] = people
    path = (out or RESULTS) / f"search_length-{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []
    for label, attack in attacks(scenario["attacks"], lengths):
        if label in {row["attack"] for row in rows}:
            continue
        spec = {key: value for key, value in scenario.items() if key in SPEC_KEYS}
        began = time.perf_counter()
        wanted = {"metrics": list(METRICS), "controls": False}
        found = sp.audit.run({**wanted, "scenario": {**spec, "attacks": attack}}, device=device)
        scores = {
            metric: [round(float(v), 3) for r in found.records for v in r.scores[metric]]
            for metric in METRICS
        }
        seconds = round(time.perf_counter() - began, 1)
        rows.append({"attack": label, "commit": commit(), "seconds": seconds, **scores})
        print(f"{name} {label}: {fmean(scores['psnr']):.2f} dB {rows[-1]}", flush=True)
        content = {"table": name, "cell": list(cell.labels), "rows": rows}
        save(path.stem, device, content, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(CELLS)}; all if none")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="in steps")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    for name in options.names or CELLS:
        measure(name, options.lengths, options.device, options.out)


if __name__ == "__main__":
    main()
