"""Which search brings most back through the wide head of Liu et al., at which step size.

    python -m benchmarks.step_sizes --device cuda [--start 100] [--batches 8] [--steps 1500]

The victim is that of 001-table7: ResNet-18 after 782 steps, with random neurons N(0, I) put in
afterwards. Batches of four test images, labels and batch statistics known, exact features and a
prior network of 32 channels for every search. The images from 100 on are those that weights of
ours were chosen on, and no table has them. Needs SEEPAGE_DATA.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks._image_prior import PriorNetwork
from seepage.attacks.feature_recovery import exact_features
from seepage.audit import _spec_entries as entries
from seepage.core import Attack, Reconstruction, SideBySide
from seepage.scoring import METRICS, pair
from seepage_papers.place import Place
from seepage_papers.prepare import prepared
from seepage_papers.reading import load_table

SIZE, CHANNELS, SEED = 4, 32, 7


def searches(steps: int) -> Mapping[str, Attack]:
    """The searches by what they are called."""
    common: dict[str, Any] = {
        "features": exact_features(),
        "prior": PriorNetwork(width=CHANNELS),
        "steps": steps,
    }
    known = sp.attacks
    return {
        "teacher_forced, 1e-3": known.teacher_forced(**common, step_size=1e-3),
        "teacher_forced, 3e-3": known.teacher_forced(**common, step_size=3e-3),
        "systematic, 1e-3": known.systematic(**common, step_size=1e-3),
        "systematic, 3e-3": known.systematic(**common, step_size=3e-3),
    }


def main() -> None:
    options = parse_options(__doc__, device=("cuda", "cpu"), start=100, batches=8, steps=1500)
    cell = load_table("001-table7").cells("small")[0]
    place = Place(device=options.device)
    scenario = prepared(cell.scenario, place)
    data = place.find({"name": "cifar10"})
    task = entries.read_model(scenario["models"], data).to(device=options.device)
    threat, client = sp.Threat(knows_labels=True, batchnorm="exact"), sp.Client(sp.Gradient())
    firsts = range(options.start, options.start + SIZE * options.batches, SIZE)
    batches = [data.batch(SIZE, start=first).to(device=options.device) for first in firsts]
    seen = [threat.observe(client, task, b, rng=sp.rng(n)) for n, b in enumerate(batches)]
    keys = [sp.rng(SEED).fork("x", n) for n in range(len(batches))]
    rows = []
    for name, attack in searches(options.steps).items():
        began = time.perf_counter()
        assert isinstance(attack, SideBySide)
        pairs = []
        for guess, batch in zip(attack.many(seen, rngs=keys), batches, strict=True):
            assert isinstance(guess, Reconstruction)
            pairs.append(pair(guess, batch))
        psnrs = [round(fmean(METRICS["psnr"](one).tolist()), 2) for one in pairs]
        row = {"search": name, "psnr": round(fmean(psnrs), 2), "batches": psnrs}
        rows.append({**row, "seconds": round(time.perf_counter() - began, 1)})
        print(row, flush=True)
    content = {"start": options.start, "steps": options.steps, "rows": rows}
    print(save("step_sizes", options.device, content, options.out))


if __name__ == "__main__":
    main()
