"""Batches of CIFAR-10 images that a small vision transformer gives away, with and without adapters.

    python -m benchmarks.vit_batches [--seeds 3] [--sizes 1 2 4 8] [--patches 16 8 4] [--first 1400]
        [--search 500 | --audit [--train 200]]

`april` reads them: one image in closed form, batches and adapters by the spans of what layers read.
With --search they are searched for by the whitened distance in so many steps, as `auto` does first.
With --audit, `audit_step` audits them at its defaults, beside 400 other images from number 0 on;
--train trains the network first, by so many steps of Adam on images from number 400 to 911.
Needs CIFAR-10 in SEEPAGE_DATA. The images begin at --first; those of the tests, which settings of
the attack were chosen on, are numbers 10 to 17. The transformer of Hugging Face has three blocks of
width 64, as in the tests, or 128, and random weights; adapters of rank 32 stand beside query, key
and value, all else but the head is frozen. Each row has all seeds, each with a network and images
of its own. The same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from itertools import product
from pathlib import Path

import torch
from torch import nn

import seepage as sp
from benchmarks.provenance import continue_rows, save
from seepage.attacks.labels._infer_labels import InferLabels
from seepage.core import Attack, Task
from seepage.core.errors import NotApplicable
from seepage.data import Dataset
from seepage.zoo._foreign import hugging_face
from seepage.zoo._lora import add_lora

RANK, RECOGNISABLE = 32, 30.0
OTHERS = 400


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


def train(model: nn.Module, data: Dataset, steps: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        batch = data.batch(64, start=OTHERS + 64 * (step % 8))
        optimiser.zero_grad()
        model(data.domain.normalise(batch.inputs), labels=batch.labels).loss.backward()
        optimiser.step()
    optimiser.zero_grad()


def audit(
    data: Dataset, people: int, patch: int, width: int, options: argparse.Namespace
) -> dict[str, object]:
    levels: Counter[str] = Counter()
    found: list[float] = []
    chosen, seconds, controls = [], [], []
    public = data.batch(OTHERS)
    for seed in range(options.seeds):
        model = build_network(data, patch, width, seed, lora=False).model.model
        train(model, data, options.train)
        batch = data.batch(people, start=options.first + 8 * seed)
        private = {"pixel_values": data.domain.normalise(batch.inputs), "labels": batch.labels}
        others = sp.PublicData(data.domain.normalise(public.inputs), public.labels)
        began = time.perf_counter()
        result = sp.audit_step(model.eval(), None, private, others=others)
        seconds.append(time.perf_counter() - began)
        levels.update(attempt.level.name for attempt in result.people.values())
        found += result.scores["psnr"].tolist()
        controls += [line for line in str(result).splitlines() if line.startswith("Positive")]
        race = result.outcomes[0].record.race
        chosen.append([] if race is None else list(race.chosen))
    return {
        "images": people * options.seeds,
        "levels": dict(levels),
        "psnr": [round(one, 1) for one in sorted(found)],
        "chosen": chosen,
        "controls": controls,
        "seconds": round(sum(seconds) / len(seconds), 1),
    }


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
    parser.add_argument("--audit", action="store_true", help="audit a step at its defaults")
    parser.add_argument("--train", type=int, default=0, help="steps of training before the audit")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    name = "vit_batches" if options.search is None else "vit_search"
    name = f"vit_audit{'_trained' if options.train else ''}" if options.audit else name
    rows = continue_rows(name, "cpu", options.out)
    data = sp.data.load("cifar10")
    for people, lora, patch, width in product(
        options.sizes,
        (False, True) if options.search is None and not options.audit else (False,),
        options.patches,
        options.widths,
    ):
        row: dict[str, object] = {"tuning": f"lora={RANK}" if lora else "full", "patch": patch}
        row |= {"width": width, "batch": people}
        row |= {} if options.search is None else {"steps": options.search}
        if any(row.items() <= done.items() for done in rows):
            continue
        rows.append(
            row | audit(data, people, patch, width, options)
            if options.audit
            else row | measure(data, people, patch, width, options, lora=lora)
        )
        print(rows[-1], flush=True)
        save(name, "cpu", {"rows": rows}, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
