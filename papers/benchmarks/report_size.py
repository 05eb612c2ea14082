"""How large the page of a large audit is, and what building it takes.

    python -m benchmarks.report_size

The records are made up: 2000 of them, four people each, on 64-pixel images of noise over the
bundled photographs, which compress worse than what an audit finds.
"""

from __future__ import annotations

import re
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

import seepage as sp
from benchmarks.provenance import save
from seepage.audit import AuditResult, Planned, Record, environment
from seepage.audit._folder import case_file, inputs_file
from seepage.core._construct import Component
from seepage.core._whole_file import seal
from seepage.report import audit_page

BATCHES, BATCH = 125, 4
DEFENSES = ("chain()", *(f"Prune({ratio})" for ratio in (0.5, 0.9, 0.99)))
ATTACKS = ("analytic_fc()", *(f"inverting_gradients(steps={n})" for n in (100, 300, 1000)))


def record(batch: int, defense: str, attack: str, psnr: Tensor) -> Record:
    values = tuple(psnr.tolist())
    baseline = {"psnr": (11.0,) * BATCH, "ssim": (0.1,) * BATCH}
    return Record(
        data="made up",
        people=tuple(range(batch * BATCH, (batch + 1) * BATCH)),
        model="convnet(width=64)",
        local=Component("Gradient", {"reduction": "mean"}),
        defense=(Component(defense),),
        threat=Component.of(sp.Threat(knows_labels=True)),
        attack=Component(attack),
        seed=0,
        scores={"psnr": values, "ssim": tuple(v / 60 for v in values), "exact": (0.0,) * BATCH},
        baselines={"mean": baseline, "draw": baseline},
        effort={"steps": 300, "restarts": 1, "seconds": 1.25, "device": "cpu"},
        case=f"case-{batch}-{defense}-{attack}",
        truth=f"truth-{batch}",
    )


def records(folder: Path) -> Iterator[Record]:
    """Records of the whole grid, their tensors written as an audit writes them."""
    generator = torch.Generator().manual_seed(0)
    photos = sp.data.load("photos").inputs
    curve = torch.logspace(0, -4, 301, dtype=torch.float64)
    for batch in range(BATCHES):
        chosen = torch.randint(len(photos), (BATCH,), generator=generator)
        truth = torch.nn.functional.interpolate(photos[chosen], size=64)
        inputs_file(folder, f"truth-{batch}").write_bytes(seal({"inputs": truth}))
        for defense, attack in product(DEFENSES, ATTACKS):
            psnr = 8 + 40 * torch.rand(BATCH, generator=generator)
            noise = torch.randn(truth.shape, generator=generator)
            guess = truth + 10 ** (-psnr / 20).reshape(-1, 1, 1, 1) * noise
            made = record(batch, defense, attack, psnr)
            held = {"guess": guess, "objective": curve}
            case_file(folder, made.case).write_bytes(seal(held))
            yield made


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for part in ("cases", "inputs"):
            (path / part).mkdir()
        found = tuple(records(path))
        planned = tuple(Planned(r.case, r.case, {}) for r in found)
        audit = AuditResult(path, "Two thousand", "", environment("cpu"), planned, found)
        began = time.perf_counter()
        page = audit_page(audit)
        seconds = time.perf_counter() - began
    # In kilobytes, as Linux counts.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = {
        "records": len(found),
        "rows": len(found) * BATCH,
        "people": BATCHES * BATCH,
        "megabytes": round(len(page.encode()) / 1e6, 2),
        "pictures": len(re.findall("<img", page)),
        "seconds": round(seconds, 2),
        "peak_megabytes": round(peak),
    }
    print(result)
    print(save("report_size", "cpu", result))


if __name__ == "__main__":
    main()
