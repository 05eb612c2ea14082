"""Batches of CIFAR-10 images that a small vision transformer gives away, with and without adapters.

    python -m benchmarks.vit_batches [--seeds 3] [--sizes 1 2 4 8] [--patches 16 8 4] [--first 1400]
        [--search 500]

`april` reads them: one image in closed form, batches and adapters by the spans of what layers read.
With --search they are searched for by the whitened distance in so many steps, as `auto` does first.
Needs CIFAR-10 in SEEPAGE_DATA. The images begin at --first; those of the tests, which settings of
the attack were chosen on, are numbers 10 to 17. The transformer of Hugging Face has three blocks of
width 64, as in the tests, or 128, and random weights; adapters of rank 32 stand beside query, key
and value, all else but the head is frozen. Each row has all seeds, each with a network and images
of its own. The same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path

import torch

import seepage as sp
from benchmarks.provenance import continue_rows, save
from seepage.attacks.labels.infer_labels import InferLabels
from seepage.core import Attack, Task
from seepage.core.errors import NotApplicable
from seepage.data import Dataset
from seepage.zoo.foreign import hugging_face
from seepage.zoo.lora import add_lora

RANK, RECOGNISABLE = 32, 30.0


def build_network(data: Dataset, patch: int, width: int, seed: int, *, lora: bool) -> Task:
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 4}
    config = {**sizes, "num_hidden_layers": 3, "patch_size": patch}
    task = hugging_face("vit", config=config, classes=10, domain=data.domain, seed=seed)
    return add_lora(task, rank=RANK, targets=("query", "key", "value")) if lora else task


def build_attack(steps: int | None, people: int) -> Attack:
    if steps is None:
        return sp.attacks.april()
    rule = {"distance": "whitened", "optimiser": "lbfgs", "step_size": 1.0, "spread": 0.1}
    prior = (1e-1, 1e-4 if people == 1 else 1e-3)
    return InferLabels(sp.attacks.inverting_gradients(steps=steps, tv=prior, **rule))


def measure(
    data: Dataset, people: int, patch: int, width: int, options: argparse.Namespace, *, lora: bool
) -> dict[str, object]:
    found: list[float] = []
    seconds, refused = [], []
    for seed in range(options.seeds):
        task = build_network(data, patch, width, seed, lora=lora)
        batch = data.batch(people, start=options.first + 8 * seed)
        seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(seed))
        began = time.perf_counter()
        try:
            guess = build_attack(options.search, people)(seen, rng=sp.rng(seed))
            found += sp.score(guess, batch, domain=data.domain)["psnr"].tolist()
        except NotApplicable as error:
            refused.append(str(error))
        seconds.append(time.perf_counter() - began)
    return {
        "images": people * options.seeds,
        "over_30_db": sum(one > RECOGNISABLE for one in found),
        "psnr": [round(one, 1) for one in sorted(found)],
        "refused": refused,
        "seconds": round(sum(seconds) / len(seconds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="batches of each row")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--patches", type=int, nargs="+", default=[16, 8, 4])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--first", type=int, default=1_400, help="number of the first image")
    parser.add_argument("--search", type=int, default=None, help="steps of a search instead")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    name = "vit_batches" if options.search is None else "vit_search"
    rows = continue_rows(name, "cpu", options.out)
    data = sp.data.load("cifar10")
    for people, lora, patch, width in product(
        options.sizes,
        (False, True) if options.search is None else (False,),
        options.patches,
        options.widths,
    ):
        row: dict[str, object] = {"tuning": f"lora={RANK}" if lora else "full", "patch": patch}
        row |= {"width": width, "batch": people}
        row |= {} if options.search is None else {"steps": options.search}
        if any(row.items() <= done.items() for done in rows):
            continue
        rows.append(row | measure(data, people, patch, width, options, lora=lora))
        print(rows[-1], flush=True)
        save(name, "cpu", {"rows": rows}, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
